// The required tensors of a model by their canonical (Hugging Face) names, with shape and role.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/model/model_config.h"

namespace nibble::model {

enum class TensorRole { kEmbedding, kNorm, kLinear, kBias, kHead };

// The linears of one layer, in the order in which the decoder runs them.
enum class LinearKind { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr int kNumLinearKinds = 7;

struct TensorSpec {
  std::string name;                 // "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // [N, K]; [K] for norms, [N] for biases
  TensorRole role;
  std::optional<LinearKind> linear = std::nullopt;  // set for kLinear, and for kBias: the linear of the bias
};

const char* ModuleSuffix(LinearKind kind);  // the end of the module path: "self_attn.q_proj", ..., "mlp.down_proj"
const char* ShortName(LinearKind kind);     // "q_proj", ..., as in target_modules
std::optional<LinearKind> LinearNamed(std::string_view short_name);
std::string ModulePath(std::int64_t layer, LinearKind kind);  // "model.layers.3.mlp.up_proj"
std::int64_t OutFeatures(const ModelConfig& config, LinearKind kind);
std::int64_t InFeatures(const ModelConfig& config, LinearKind kind);

// Norms of one layer. HasNorm says whether a model has one.
enum class Norm {
  // Before the blocks (attention, MLP).
  kInput,
  kPostAttention,
  // Before o_proj and down_proj.
  kAttentionSub,
  kFfnSub,
  // Over each head of q and k.
  kQHead,
  kKHead,
  // Before one linear, in the order of LinearKind.
  kBeforeQ,
  kBeforeK,
  kBeforeV,
  kBeforeO,
  kBeforeGate,
  kBeforeUp,
  kBeforeDown,
};
inline constexpr int kNumNorms = 13;
constexpr Norm NormBefore(LinearKind kind) {
  return static_cast<Norm>(static_cast<int>(Norm::kBeforeQ) + static_cast<int>(kind));
}
bool HasNorm(const ModelConfig& config, Norm norm);
std::string NormName(std::int64_t layer, Norm norm);  // "model.layers.3.input_layernorm.weight"
std::int64_t NormSize(const ModelConfig& config, Norm norm);

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kFinalNormName[] = "model.norm.weight";
inline constexpr char kHeadName[] = "lm_head.weight";  // absent when tied

// Every tensor of the float model, in a fixed order, which random weights depend on (random_weights.h).
std::vector<TensorSpec> RequiredTensors(const ModelConfig& config);

}  // namespace nibble::model
