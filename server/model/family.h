// The families of decoders that are understood: one row each. Included by server/model/*.cc only.
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
  const char* gguf;             // general.architecture, or null where llama.cpp has none that computes the same
  bool gguf_permuted;           // llama.cpp's converter interleaves the rows of q and k
  // What transformers' configuration class takes where config.json has no such key.
  double rms_norm_eps;
  double rope_theta;
  std::int64_t max_positions;
  std::int64_t num_kv_heads;    // 0: as many as heads
  std::int64_t head_dim;        // 0: hidden_size / heads
  std::int64_t sliding_window;  // 0: none
  Activation activation;
  // Which keys and weights the architecture has.
  enum class AttentionBias {
    kNone,
    kKey,
    kQkvAlways
  } attention_bias;  // kKey: "attention_bias" gives q, k, v and o one
  bool mlp_bias_key;
  bool fused;  // checkpoints hold q, k and v as one weight, and gate and up; import takes them apart
  bool qk_norm;
  NormPlacement norms;
};

// By "architectures" and "model_type" of a config.json. Unimplemented names a family that is not understood.
absl::StatusOr<const Family*> FamilyOfHf(const base::Json& config);
const Family* FindFamily(std::string_view name);  // null: none
const Family* FindGgufFamily(std::string_view architecture);

}  // namespace nibble::model
