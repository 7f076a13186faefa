// transformers' "bitnet" checkpoints (integrations/bitnet.py): quantization_config of a config.json, and weights as its
// linear classes store them. Included by server/model/*.cc and server/convert/*.cc only.
//
//   bitlinear                 weight u8 [N/4, K], weight_scale [1]: y = acc / (weight_scale * activation scale) + bias
//   autobitlinear, offline    weight u8 [N/4, K], or float holding the codes; weight_scale [1]:
//                             y = (x w^T + bias) * weight_scale
//   autobitlinear, online     float master weights, ternarized at every forward pass: not servable, but convertible
// Row r of a packed weight holds rows r, r + N/4, r + 2N/4, r + 3N/4 at bits 0-1, 2-3, 4-5, 6-7, each as code + 1.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/json.h"
#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

enum class HfLinearClass { kBitLinear, kAutoBitLinearOffline, kAutoBitLinearOnline };

struct HfBitNet {
  HfLinearClass linear_class = HfLinearClass::kBitLinear;
  bool use_rms_norm = false;  // a norm before every linear, besides the norms of the block
  double rms_norm_eps = 1e-6;
  std::vector<LinearKind> float_linears = {};  // plain float linears, without such a norm; ascending
};

inline constexpr char kHfWeightScale[] = "_scale";  // suffix of a weight's name
inline constexpr std::int64_t kHfBitNetRows = 4;    // rows in a byte

// "PATH.bias" -> "PATH.weight_scale": the scale by which autobitlinear, offline multiplies that bias.
std::string HfScaleOfBias(std::string_view bias);

// Reads config.json's quantization_config; nullopt when absent. Unimplemented names another method or linear class, or
// a module that is excluded from quantization other than the head and a decoder's linears by last name, or use_rms_norm
// with such linears. InvalidArgument: a field of another type, or an unknown mode.
absl::StatusOr<std::optional<HfBitNet>> ParseHfBitNet(const base::Json& config);
base::Json ToJson(const HfBitNet& bitnet);

// Codes [N, K] -> bytes [N/4, K], and back. InvalidArgument for a code other than -1, 0 and 1, or when N is not a
// multiple of 4, or the bytes have another size.
absl::StatusOr<std::string> PackHfBitNet(std::span<const std::int8_t> codes, std::int64_t n, std::int64_t k);
absl::StatusOr<std::vector<std::int8_t>> UnpackHfBitNet(std::string_view bytes, std::int64_t n, std::int64_t k);

// Codes and scale of floats that are already ternary (every value is -s, 0 or s); nullopt for raw masters.
struct TernaryValues {
  std::vector<std::int8_t> codes;
  float scale = 0;  // 1 if all codes are 0
};
std::optional<TernaryValues> AsTernary(std::span<const float> values);

}  // namespace nibble::model
