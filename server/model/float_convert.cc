#include "server/model/float_convert.h"

#include <bit>
#include <cstring>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {

using base::StrCat;
using kernels::DType;

float HalfToFloat(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  // 112: the difference of the exponents' biases, 127 and 15.
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  // Zero or subnormal: mantissa * 2^-24 is exact in f32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

absl::StatusOr<std::vector<float>> ToFloats(std::span<const std::byte> bytes, DType dtype, std::int64_t count) {
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    return absl::InvalidArgumentError(StrCat("dtype ", kernels::Name(dtype), ", wanted f32, bf16 or f16"));
  }
  if (count < 0 || bytes.size() / static_cast<std::size_t>(kernels::SizeOf(dtype)) < static_cast<std::size_t>(count)) {
    return absl::InvalidArgumentError(
        StrCat(bytes.size(), " bytes, wanted ", count, " elements of ", kernels::Name(dtype)));
  }
  std::vector<float> out(static_cast<std::size_t>(count));
  if (out.empty()) return out;
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
    return out;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    out[i] = dtype == DType::kBF16 ? kernels::ToFloat(kernels::BF16{bits}) : HalfToFloat(bits);
  }
  return out;
}

std::string FromFloats(std::span<const float> values, DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  std::string out(values.size() * static_cast<std::size_t>(kernels::SizeOf(dtype)), '\0');
  if (values.empty()) return out;
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), values.data(), out.size());
    return out;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const kernels::BF16 narrow = kernels::ToBF16(values[i]);
    std::memcpy(out.data() + 2 * i, &narrow.bits, 2);
  }
  return out;
}

absl::StatusOr<std::string> ConvertFloats(std::span<const std::byte> bytes, DType from, DType to, std::int64_t count) {
  if (from == to) return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> values, ToFloats(bytes, from, count));
  return FromFloats(values, to);
}

}  // namespace nibble::model
