#include "server/model/tensor_table.h"

#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::StrCat;

std::string LayerPath(std::int64_t layer) { return StrCat("model.layers.", layer, "."); }

bool HasBias(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ:
    case LinearKind::kK:
    case LinearKind::kV: return config.qkv_bias;
    case LinearKind::kO: return config.o_bias;
    case LinearKind::kGate:
    case LinearKind::kUp:
    case LinearKind::kDown: return config.mlp_bias;
  }
  return false;
}

// The linear that reads the output of a norm. Requires a norm from kBeforeQ to kBeforeDown.
LinearKind LinearBehind(Norm norm) {
  return static_cast<LinearKind>(static_cast<int>(norm) - static_cast<int>(Norm::kBeforeQ));
}

}  // namespace

const char* ModuleSuffix(LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ: return "self_attn.q_proj";
    case LinearKind::kK: return "self_attn.k_proj";
    case LinearKind::kV: return "self_attn.v_proj";
    case LinearKind::kO: return "self_attn.o_proj";
    case LinearKind::kGate: return "mlp.gate_proj";
    case LinearKind::kUp: return "mlp.up_proj";
    case LinearKind::kDown: return "mlp.down_proj";
  }
  return "";
}

const char* ShortName(LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ: return "q_proj";
    case LinearKind::kK: return "k_proj";
    case LinearKind::kV: return "v_proj";
    case LinearKind::kO: return "o_proj";
    case LinearKind::kGate: return "gate_proj";
    case LinearKind::kUp: return "up_proj";
    case LinearKind::kDown: return "down_proj";
  }
  return "";
}

std::optional<LinearKind> LinearNamed(std::string_view short_name) {
  for (int k = 0; k < kNumLinearKinds; ++k) {
    if (short_name == ShortName(static_cast<LinearKind>(k))) return static_cast<LinearKind>(k);
  }
  return std::nullopt;
}

std::string ModulePath(std::int64_t layer, LinearKind kind) { return StrCat(LayerPath(layer), ModuleSuffix(kind)); }

std::int64_t OutFeatures(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ: return config.q_size();
    case LinearKind::kK:
    case LinearKind::kV: return config.kv_size();
    case LinearKind::kO:
    case LinearKind::kDown: return config.hidden_size;
    case LinearKind::kGate:
    case LinearKind::kUp: return config.ffn_size;
  }
  return 0;
}

std::int64_t InFeatures(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kO: return config.q_size();
    case LinearKind::kDown: return config.ffn_size;
    default: return config.hidden_size;
  }
}

bool HasNorm(const ModelConfig& config, Norm norm) {
  switch (norm) {
    case Norm::kInput:
    case Norm::kPostAttention: return config.norms != NormPlacement::kLinear;
    case Norm::kAttentionSub:
    case Norm::kFfnSub: return config.norms == NormPlacement::kBlockAndSub;
    case Norm::kQHead:
    case Norm::kKHead: return config.qk_norm;
    default: return config.norms == NormPlacement::kLinear || config.norms == NormPlacement::kBlockAndLinear;
  }
}

std::string NormName(std::int64_t layer, Norm norm) {
  switch (norm) {
    case Norm::kInput: return StrCat(LayerPath(layer), "input_layernorm.weight");
    case Norm::kPostAttention: return StrCat(LayerPath(layer), "post_attention_layernorm.weight");
    case Norm::kAttentionSub: return StrCat(LayerPath(layer), "self_attn.attn_sub_norm.weight");
    case Norm::kFfnSub: return StrCat(LayerPath(layer), "mlp.ffn_sub_norm.weight");
    case Norm::kQHead: return StrCat(LayerPath(layer), "self_attn.q_norm.weight");
    case Norm::kKHead: return StrCat(LayerPath(layer), "self_attn.k_norm.weight");
    default: return StrCat(ModulePath(layer, LinearBehind(norm)), ".rms_norm.weight");
  }
}

std::int64_t NormSize(const ModelConfig& config, Norm norm) {
  switch (norm) {
    case Norm::kInput:
    case Norm::kPostAttention: return config.hidden_size;
    case Norm::kAttentionSub: return config.q_size();
    case Norm::kFfnSub: return config.ffn_size;
    case Norm::kQHead:
    case Norm::kKHead: return config.head_dim;
    default: return InFeatures(config, LinearBehind(norm));
  }
}

std::vector<TensorSpec> RequiredTensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  const auto add_norm = [&](std::int64_t layer, Norm norm) {
    if (HasNorm(config, norm)) specs.push_back({NormName(layer, norm), {NormSize(config, norm)}, TensorRole::kNorm});
  };
  const auto add_linear = [&](std::int64_t layer, LinearKind kind) {
    add_norm(layer, NormBefore(kind));
    const std::int64_t n = OutFeatures(config, kind);
    const std::string path = ModulePath(layer, kind);
    specs.push_back({path + ".weight", {n, InFeatures(config, kind)}, TensorRole::kLinear, kind});
    if (HasBias(config, kind)) specs.push_back({path + ".bias", {n}, TensorRole::kBias, kind});
  };
  specs.push_back({kEmbeddingName, {config.vocab_size, config.hidden_size}, TensorRole::kEmbedding});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    add_norm(layer, Norm::kInput);
    for (LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV}) add_linear(layer, kind);
    for (Norm norm : {Norm::kQHead, Norm::kKHead, Norm::kAttentionSub}) add_norm(layer, norm);
    add_linear(layer, LinearKind::kO);
    add_norm(layer, Norm::kPostAttention);
    for (LinearKind kind : {LinearKind::kGate, LinearKind::kUp}) add_linear(layer, kind);
    add_norm(layer, Norm::kFfnSub);
    add_linear(layer, LinearKind::kDown);
  }
  specs.push_back({kFinalNormName, {config.hidden_size}, TensorRole::kNorm});
  if (!config.tied_embeddings) {
    specs.push_back({kHeadName, {config.vocab_size, config.hidden_size}, TensorRole::kHead});
  }
  return specs;
}

}  // namespace nibble::model
