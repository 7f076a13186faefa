#include "server/model/hf_bitnet.h"

#include <algorithm>
#include <cmath>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;

constexpr char kWhere[] = "config.json: quantization_config";

absl::Status UnsupportedBitNet(std::string_view what) {
  return base::WithReason(absl::UnimplementedError(StrCat(kWhere, ": ", what)), "UNSUPPORTED_MODEL");
}

// modules_to_not_convert: null, or a list of the head and of linears by last name, each in all layers.
absl::StatusOr<std::vector<LinearKind>> ParseNotConverted(const Json& config) {
  std::vector<LinearKind> linears;
  const auto left_out = config.find("modules_to_not_convert");
  if (left_out == config.end() || left_out->is_null()) return linears;
  if (!left_out->is_array()) {
    return absl::InvalidArgumentError(StrCat(kWhere, ": \"modules_to_not_convert\" is not a list"));
  }
  for (const Json& name : *left_out) {
    if (name == "lm_head") continue;
    const auto linear = name.is_string() ? LinearNamed(name.get<std::string>()) : std::nullopt;
    if (!linear.has_value()) {
      return UnsupportedBitNet(StrCat("modules_to_not_convert with ", base::Dump(name).substr(0, 64),
                                      " (supported: lm_head, and linears by last name such as o_proj)"));
    }
    linears.push_back(*linear);
  }
  std::sort(linears.begin(), linears.end());
  linears.erase(std::unique(linears.begin(), linears.end()), linears.end());
  return linears;
}

}  // namespace

absl::StatusOr<std::optional<HfBitNet>> ParseHfBitNet(const Json& config) {
  const auto it = config.find("quantization_config");
  if (it == config.end() || it->is_null()) return std::optional<HfBitNet>();
  if (!it->is_object()) return absl::InvalidArgumentError(StrCat(kWhere, " is not an object"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string method, base::GetString(*it, "quant_method", kWhere));
  if (method != "bitnet")
    return UnsupportedBitNet(StrCat("quant_method \"", method.substr(0, 64), "\" (supported: bitnet)"));
  HfBitNet bitnet;
  NIBBLE_ASSIGN_OR_RETURN(const std::string linear_class, base::GetString(*it, "linear_class", kWhere, "bitlinear"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string mode, base::GetString(*it, "quantization_mode", kWhere, "offline"));
  if (mode != "offline" && mode != "online") {
    return absl::InvalidArgumentError(
        StrCat(kWhere, ": \"quantization_mode\" is \"", mode.substr(0, 64), "\", wanted offline or online"));
  }
  if (linear_class == "autobitlinear") {
    bitnet.linear_class = mode == "online" ? HfLinearClass::kAutoBitLinearOnline : HfLinearClass::kAutoBitLinearOffline;
  } else if (linear_class != "bitlinear") {
    return UnsupportedBitNet(
        StrCat("linear_class \"", linear_class.substr(0, 64), "\" (supported: bitlinear, autobitlinear)"));
  }
  NIBBLE_ASSIGN_OR_RETURN(bitnet.use_rms_norm, base::GetBool(*it, "use_rms_norm", kWhere, false));
  NIBBLE_ASSIGN_OR_RETURN(bitnet.rms_norm_eps, base::GetNumber(*it, "rms_norm_eps", kWhere, 1e-6));
  NIBBLE_ASSIGN_OR_RETURN(bitnet.float_linears, ParseNotConverted(*it));
  if (bitnet.use_rms_norm && !bitnet.float_linears.empty()) {
    return UnsupportedBitNet("use_rms_norm with linears in modules_to_not_convert, which have no such norm");
  }
  return std::optional<HfBitNet>(bitnet);
}

std::string HfScaleOfBias(std::string_view bias) {
  bias.remove_suffix(std::string_view("bias").size());
  return StrCat(bias, "weight", kHfWeightScale);
}

Json ToJson(const HfBitNet& bitnet) {
  Json not_converted = Json::array({"lm_head"});
  for (const LinearKind linear : bitnet.float_linears) not_converted.push_back(ShortName(linear));
  return {{"quant_method", "bitnet"},
          {"linear_class", bitnet.linear_class == HfLinearClass::kBitLinear ? "bitlinear" : "autobitlinear"},
          {"quantization_mode", bitnet.linear_class == HfLinearClass::kAutoBitLinearOnline ? "online" : "offline"},
          {"modules_to_not_convert", not_converted},
          {"use_rms_norm", bitnet.use_rms_norm},
          {"rms_norm_eps", bitnet.rms_norm_eps}};
}

absl::StatusOr<std::string> PackHfBitNet(std::span<const std::int8_t> codes, std::int64_t n, std::int64_t k) {
  if (n % kHfBitNetRows != 0) {
    return absl::InvalidArgumentError(StrCat(n, " rows, transformers packs only multiples of ", kHfBitNetRows));
  }
  const std::int64_t stripe = n / kHfBitNetRows * k;
  std::string bytes(static_cast<std::size_t>(stripe), '\0');
  for (std::int64_t part = 0; part < kHfBitNetRows; ++part) {
    for (std::int64_t i = 0; i < stripe; ++i) {
      const int code = codes[static_cast<std::size_t>(part * stripe + i)] + 1;
      if (code < 0 || code > 2) return absl::InvalidArgumentError(StrCat("code ", code - 1, ", wanted -1, 0 or 1"));
      char& byte = bytes[static_cast<std::size_t>(i)];
      byte = static_cast<char>(static_cast<unsigned char>(byte) | (code << (2 * part)));
    }
  }
  return bytes;
}

absl::StatusOr<std::vector<std::int8_t>> UnpackHfBitNet(std::string_view bytes, std::int64_t n, std::int64_t k) {
  const std::int64_t stripe = n / kHfBitNetRows * k;
  if (n % kHfBitNetRows != 0 || static_cast<std::int64_t>(bytes.size()) != stripe) {
    return absl::InvalidArgumentError(StrCat(bytes.size(), " packed bytes do not hold [", n, ", ", k, "]"));
  }
  std::vector<std::int8_t> codes(static_cast<std::size_t>(n * k));
  for (std::int64_t part = 0; part < kHfBitNetRows; ++part) {
    for (std::int64_t i = 0; i < stripe; ++i) {
      const int bits = static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]) >> (2 * part) & 3;
      if (bits == 3)
        return absl::InvalidArgumentError(
            StrCat("row ", part * (n / kHfBitNetRows) + i / k, " holds a code other than -1, 0 and 1"));
      codes[static_cast<std::size_t>(part * stripe + i)] = static_cast<std::int8_t>(bits - 1);
    }
  }
  return codes;
}

std::optional<TernaryValues> AsTernary(std::span<const float> values) {
  TernaryValues out;
  out.codes.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float magnitude = std::fabs(values[i]);
    if (magnitude == 0.0f) continue;
    if (out.scale == 0.0f) out.scale = magnitude;
    if (magnitude != out.scale) return std::nullopt;
    out.codes[i] = values[i] > 0 ? std::int8_t{1} : std::int8_t{-1};
  }
  if (out.scale == 0.0f) out.scale = 1.0f;
  return out;
}

}  // namespace nibble::model
