// The configuration of a decoder-only transformer, independent of the file format. The table in server/model/family.cc
// lists the supported families and how each one fills these fields.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/activation.h"
#include "server/base/json.h"

namespace nibble::model {

// Maximum size of a config.json, in bytes.
inline constexpr std::uint64_t kMaxConfigJsonBytes = 1 << 20;

// Rotary embedding. kLlama3 stretches low frequencies as Llama 3.1 does; kLinear divides positions.
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;             // kLlama3
  double high_freq_factor = 4.0;            // kLlama3
  std::int64_t original_max_positions = 0;  // kLlama3
};

// Where RMSNorms are applied.
enum class NormPlacement {
  kBlock,           // before attention and before the MLP (Llama)
  kBlockAndSub,     // as kBlock, and before o_proj and down_proj (BitNet b1.58 2B-4T: attn_sub_norm, ffn_sub_norm)
  kLinear,          // one before every linear, none before the blocks (the BitNet training tips)
  kBlockAndLinear,  // kBlock and kLinear together (transformers' bitnet with use_rms_norm)
};

using kernels::Activation;  // act(gate) * up

struct ModelConfig {
  std::string architecture;  // a name from family.cc: "llama", "mistral", ...
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;   // of the position embeddings; context_limit() gives the usable length
  std::int64_t sliding_window = 0;  // of the trained model, in tokens, the current one included; 0: none
  double rms_norm_eps = 0;
  double linear_norm_eps = 0;  // of the norms before linears; default: rms_norm_eps
  bool tied_embeddings = false;
  bool qkv_bias = false;  // q, k and v have a bias
  bool o_bias = false;
  bool mlp_bias = false;  // gate, up and down have a bias
  bool qk_norm = false;   // every head of q and k is normalized before rotary embedding
  NormPlacement norms = NormPlacement::kBlock;
  Activation activation = Activation::kSilu;
  RopeConfig rope;
  std::optional<std::int32_t> bos_token_id;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> pad_token_id;

  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
  // Attention always sees all earlier tokens. A model with a sliding window is limited to the window's length, where
  // windowed and full attention are the same.
  std::int64_t context_limit() const {
    return sliding_window > 0 && sliding_window < max_positions ? sliding_window : max_positions;
  }
  // For messages: "4096 positions", and " (its sliding window)" when the window sets the limit.
  std::string limit_text(std::int64_t limit) const;
};

// Reads a Hugging Face config.json as transformers 4 or 5 writes it (rope_parameters or rope_theta / rope_scaling;
// dtype is ignored). "nibble_norms" overrides the family's norm placement. Unimplemented names the unsupported feature
// (architecture, activation, rope type, quantization_config ...); InvalidArgument names a missing or contradictory
// field. Every size is bounded before sizes are multiplied.
absl::StatusOr<ModelConfig> ParseHfConfig(const base::Json& json);

// The inverse: writes a config.json that transformers and ParseHfConfig can read.
base::Json ToHfConfig(const ModelConfig& config);

// [head_dim / 2] angles per position in f32, with the scaling applied.
std::vector<float> RopeInverseFrequencies(const ModelConfig& config);

}  // namespace nibble::model
