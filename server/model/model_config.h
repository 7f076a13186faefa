// What a decoder-only transformer of the Llama family is made of, whatever file it came from.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/json.h"

namespace nibble::model {

// Rotary embedding. kLlama3 stretches low frequencies as Llama 3.1 does; kLinear divides positions.
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;      // kLlama3
  double high_freq_factor = 4.0;     // kLlama3
  std::int64_t original_max_positions = 0;  // kLlama3
};

struct ModelConfig {
  std::string architecture;          // "llama"; later families add their own names
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;
  double rms_norm_eps = 0;
  bool tied_embeddings = false;
  bool attention_bias = false;       // q, k, v and o have a bias
  bool mlp_bias = false;             // gate, up and down have a bias
  RopeConfig rope;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> pad_token_id;

  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
};

// Reads a Hugging Face config.json as transformers 4 or 5 writes it (rope_parameters or rope_theta / rope_scaling; dtype is
// not ours to read). Unimplemented names what is not supported (architecture, activation, rope type, sliding window ...);
// InvalidArgument names a missing or contradictory field. Every size is bounded before any product of sizes is taken.
absl::StatusOr<ModelConfig> ParseHfConfig(const base::Json& json);

// The inverse: a config.json that transformers and ParseHfConfig read.
base::Json ToHfConfig(const ModelConfig& config);

// [head_dim / 2] angles per position in f32, with the scaling applied.
std::vector<float> RopeInverseFrequencies(const ModelConfig& config);

}  // namespace nibble::model
