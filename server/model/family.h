// The supported families of decoders, one row each. Included by server/model/*.cc only.
#pragma once
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/model/model_config.h"

namespace nibble::model {

struct Family {
  const char* name;             // ModelConfig::architecture
  const char* hf_architecture;  // "LlamaForCausalLM"
  const char* model_type;       // "llama"
  const char* gguf;             // general.architecture, or null if llama.cpp has no equivalent
  bool gguf_permuted;           // llama.cpp's converter interleaves the rows of q and k
  // Defaults of transformers' configuration class for keys that config.json lacks.
  double rms_norm_eps;
  double rope_theta;
  std::int64_t max_positions;
  std::int64_t num_kv_heads;    // 0: as many as heads
  std::int64_t head_dim;        // 0: hidden_size / heads
  std::int64_t sliding_window;  // 0: none
  Activation activation;
  // The keys and weights of the architecture.
  enum class AttentionBias {
    kNone,
    kKey,
    kQkvAlways
  } attention_bias;  // kKey: the key "attention_bias" decides whether q, k, v and o have a bias
  bool mlp_bias_key;
  bool fused;  // checkpoints hold q, k and v as one weight, gate and up as another; import splits both
  bool qk_norm;
  NormPlacement norms;
};

// The family that "architectures" and "model_type" of a config.json name. Unimplemented names an unsupported family.
absl::StatusOr<const Family*> FamilyOfHf(const base::Json& config);
const Family* FindFamily(std::string_view name);  // null: no such family
const Family* FindGgufFamily(std::string_view architecture);

}  // namespace nibble::model
