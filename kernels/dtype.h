// Element types, and conversion to and from bf16 by integer arithmetic: round to nearest even, the same bits on every
// machine.
#pragma once
#include <cstdint>
#include <cstring>

namespace nibble::kernels {

enum class DType : std::uint8_t { kF32, kBF16, kF16, kI8, kU8, kI16, kI32, kI64 };

constexpr std::int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16: return 2;
    case DType::kI8:
    case DType::kU8: return 1;
    case DType::kI64: return 8;
  }
  return 0;
}

constexpr const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kI8: return "i8";
    case DType::kU8: return "u8";
    case DType::kI16: return "i16";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "unknown";
}

// The bits of a bfloat16: the upper half of a float32.
struct BF16 {
  std::uint16_t bits;
};

namespace {  // for the reason that element.h gives

inline float ToFloat(BF16 x) {
  const std::uint32_t u = static_cast<std::uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);  // std::bit_cast is C++20; nvcc reads this as C++17
  return f;
}
inline float ToFloat(float x) { return x; }

inline BF16 ToBF16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<std::uint16_t>((u >> 16) | 0x0040u)};  // quiet NaN
  // Adds just under half of a bf16 unit, and one more if the last kept bit is 1: ties round to even.
  return BF16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Rounds to the destination's type: the `rn_T` of the docstrings.
template <typename T>
T RoundTo(float x);
template <>
inline float RoundTo<float>(float x) {
  return x;
}
template <>
inline BF16 RoundTo<BF16>(float x) {
  return ToBF16(x);
}

}  // namespace
}  // namespace nibble::kernels
