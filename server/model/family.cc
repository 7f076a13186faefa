#include "server/model/family.h"

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;
using Bias = Family::AttentionBias;

constexpr const char* kWhere = kConfigFile;

// Defaults: transformers 5.23, configuration_<model_type>.py.
constexpr Family kFamilies[] = {
    {.name = "llama",
     .hf_architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .gguf = "llama",
     .gguf_permuted = true,
     .rms_norm_eps = 1e-6,
     .rope_theta = 10000.0,
     .max_positions = 2048,
     .num_kv_heads = 0,
     .head_dim = 0,
     .sliding_window = 0,
     .activation = Activation::kSilu,
     .attention_bias = Bias::kFromConfig,
     .mlp_bias_key = true,
     .fused = false,
     .qk_norm = false,
     .norms = NormPlacement::kBlock},
    // GGUF has no architecture of its own for Mistral: its files say llama.
    {.name = "mistral",
     .hf_architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .gguf = nullptr,
     .gguf_permuted = false,
     .rms_norm_eps = 1e-6,
     .rope_theta = 10000.0,
     .max_positions = 131072,
     .num_kv_heads = 8,
     .head_dim = 0,
     .sliding_window = 4096,
     .activation = Activation::kSilu,
     .attention_bias = Bias::kNone,
     .mlp_bias_key = false,
     .fused = false,
     .qk_norm = false,
     .norms = NormPlacement::kBlock},
    {.name = "qwen2",
     .hf_architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .gguf = "qwen2",
     .gguf_permuted = false,
     .rms_norm_eps = 1e-6,
     .rope_theta = 10000.0,
     .max_positions = 32768,
     .num_kv_heads = 32,
     .head_dim = 0,
     .sliding_window = 4096,
     .activation = Activation::kSilu,
     .attention_bias = Bias::kQkvAlways,
     .mlp_bias_key = false,
     .fused = false,
     .qk_norm = false,
     .norms = NormPlacement::kBlock},
    {.name = "qwen3",
     .hf_architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .gguf = "qwen3",
     .gguf_permuted = false,
     .rms_norm_eps = 1e-6,
     .rope_theta = 10000.0,
     .max_positions = 32768,
     .num_kv_heads = 32,
     .head_dim = 128,
     .sliding_window = 4096,
     .activation = Activation::kSilu,
     .attention_bias = Bias::kFromConfig,
     .mlp_bias_key = false,
     .fused = false,
     .qk_norm = true,
     .norms = NormPlacement::kBlock},
    // A Mistral with fused weights; export writes it as Mistral.
    {.name = "phi3",
     .hf_architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .gguf = nullptr,
     .gguf_permuted = false,
     .rms_norm_eps = 1e-5,
     .rope_theta = 10000.0,
     .max_positions = 4096,
     .num_kv_heads = 0,
     .head_dim = 0,
     .sliding_window = 0,
     .activation = Activation::kSilu,
     .attention_bias = Bias::kNone,
     .mlp_bias_key = false,
     .fused = true,
     .qk_norm = false,
     .norms = NormPlacement::kBlock},
    // llama.cpp's "bitnet" is the older model of 1bitLLM, with silu. gguf-py has no architecture for this one
    // (Microsoft's BitNet b1.58 2B4T).
    {.name = "bitnet",
     .hf_architecture = "BitNetForCausalLM",
     .model_type = "bitnet",
     .gguf = nullptr,
     .gguf_permuted = false,
     .rms_norm_eps = 1e-5,
     .rope_theta = 500000.0,
     .max_positions = 2048,
     .num_kv_heads = 5,
     .head_dim = 0,
     .sliding_window = 0,
     .activation = Activation::kRelu2,
     .attention_bias = Bias::kFromConfig,
     .mlp_bias_key = false,
     .fused = false,
     .qk_norm = false,
     .norms = NormPlacement::kBlockAndSub},
};

std::string Known(const char* Family::* member) {
  std::string text;
  for (const Family& family : kFamilies) {
    if (family.*member != nullptr) text += StrCat(text.empty() ? "" : ", ", family.*member);
  }
  return text;
}

absl::Status Unsupported(std::string_view what, std::string_view got, const char* Family::* member) {
  return base::WithReason(absl::UnimplementedError(StrCat(kWhere, ": ", what, " \"", got.substr(0, 64),
                                                          "\" (supported: ", Known(member), ")")),
                          "UNSUPPORTED_MODEL");
}

}  // namespace

absl::StatusOr<const Family*> FamilyOfHf(const Json& config) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string type, base::GetString(config, "model_type", kWhere, ""));
  std::string architecture;
  if (const auto list = config.find("architectures"); list != config.end() && !list->is_null()) {
    if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
      return absl::InvalidArgumentError(
          StrCat(kWhere, ": \"architectures\" is ", base::Dump(*list).substr(0, 64), ", wanted a list of one name"));
    }
    architecture = (*list)[0].get<std::string>();
  }
  if (architecture.empty() && type.empty()) {
    return absl::InvalidArgumentError(
        StrCat(kWhere, ": \"architectures\" is absent, wanted [\"LlamaForCausalLM\"] or similar"));
  }
  const Family* found = nullptr;
  for (const Family& family : kFamilies) {
    if (architecture.empty() ? type == family.model_type : architecture == family.hf_architecture) found = &family;
  }
  if (found == nullptr) {
    return architecture.empty() ? Unsupported("model_type", type, &Family::model_type)
                                : Unsupported("architecture", architecture, &Family::hf_architecture);
  }
  if (!type.empty() && type != found->model_type) {
    return FindFamily(type) == nullptr
               ? Unsupported("model_type", type, &Family::model_type)
               : absl::InvalidArgumentError(StrCat(kWhere, ": \"model_type\" is \"", type, "\", wanted \"",
                                                   found->model_type, "\" with architecture ", found->hf_architecture));
  }
  return found;
}

const Family* FindFamily(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

const Family* FindGgufFamily(std::string_view architecture) {
  for (const Family& family : kFamilies) {
    if (family.gguf != nullptr && architecture == family.gguf) return &family;
  }
  return nullptr;
}

}  // namespace nibble::model
