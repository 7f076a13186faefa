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
  const char* gguf;             // general.architecture of GGUF files that become this family; null: none do
  bool gguf_permuted;           // llama.cpp's converter interleaves the rows of q and k
  // Defaults of transformers' configuration class for keys that config.json lacks.
  double rms_norm_eps;
  double rope_theta;
  std::int64_t max_positions;
  std::int64_t num_kv_heads;    // 0: as many as heads
  std::int64_t head_dim;        // 0: hidden_size / heads
  std::int64_t sliding_window;  // 0: none
  Activation activation;
  enum class AttentionBias {
    kNone,
    kFromConfig,  // q, k, v and o have biases if config.json's "attention_bias" is true
    kQkvAlways,
  } attention_bias;
  bool mlp_bias_key;  // config.json may have "mlp_bias"
  bool fused;         // checkpoints hold q, k and v as one weight, gate and up as another; import splits both
  bool qk_norm;       // a norm of every head of q and k
  NormPlacement norms;
};

// The family that "architectures" and "model_type" of a config.json name. Errors: Unimplemented (an unsupported family,
// by name), InvalidArgument (both are absent or contradict each other, or one is malformed).
absl::StatusOr<const Family*> FamilyOfHf(const base::Json& config);
const Family* FindFamily(std::string_view name);              // by Family::name; null: no such family
const Family* FindGgufFamily(std::string_view architecture);  // by Family::gguf; null: no such family

}  // namespace nibble::model
