#include "server/model/tensor_table.h"

#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::StrCat;

std::string LayerPath(std::int64_t layer) { return StrCat("model.layers.", layer, "."); }

bool HasBias(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ: case LinearKind::kK: case LinearKind::kV: case LinearKind::kO: return config.attention_bias;
    case LinearKind::kGate: case LinearKind::kUp: case LinearKind::kDown: return config.mlp_bias;
  }
  return false;
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

std::string ModulePath(std::int64_t layer, LinearKind kind) { return StrCat(LayerPath(layer), ModuleSuffix(kind)); }

std::int64_t OutFeatures(const ModelConfig& config, LinearKind kind) {
  switch (kind) {
    case LinearKind::kQ: return config.q_size();
    case LinearKind::kK: case LinearKind::kV: return config.kv_size();
    case LinearKind::kO: case LinearKind::kDown: return config.hidden_size;
    case LinearKind::kGate: case LinearKind::kUp: return config.ffn_size;
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

std::string InputNormName(std::int64_t layer) { return StrCat(LayerPath(layer), "input_layernorm.weight"); }
std::string PostAttentionNormName(std::int64_t layer) {
  return StrCat(LayerPath(layer), "post_attention_layernorm.weight");
}

std::vector<TensorSpec> RequiredTensors(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  const auto add_linear = [&](std::int64_t layer, LinearKind kind) {
    const std::int64_t n = OutFeatures(config, kind);
    const std::string path = ModulePath(layer, kind);
    specs.push_back({path + ".weight", {n, InFeatures(config, kind)}, TensorRole::kLinear});
    if (HasBias(config, kind)) specs.push_back({path + ".bias", {n}, TensorRole::kBias});
  };
  specs.push_back({kEmbeddingName, {config.vocab_size, config.hidden_size}, TensorRole::kEmbedding});
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    specs.push_back({InputNormName(layer), {config.hidden_size}, TensorRole::kNorm});
    for (LinearKind kind : {LinearKind::kQ, LinearKind::kK, LinearKind::kV, LinearKind::kO}) add_linear(layer, kind);
    specs.push_back({PostAttentionNormName(layer), {config.hidden_size}, TensorRole::kNorm});
    for (LinearKind kind : {LinearKind::kGate, LinearKind::kUp, LinearKind::kDown}) add_linear(layer, kind);
  }
  specs.push_back({kFinalNormName, {config.hidden_size}, TensorRole::kNorm});
  if (!config.tied_embeddings) {
    specs.push_back({kHeadName, {config.vocab_size, config.hidden_size}, TensorRole::kHead});
  }
  return specs;
}

}  // namespace nibble::model
