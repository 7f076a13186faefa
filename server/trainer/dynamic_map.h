// The 256 values of an 8-bit moment (dynamic quantization, arXiv:2110.02861), as bitsandbytes and torchao define them.
// A moment is its code's value * the absmax of its block.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace nibble::trainer {

inline constexpr std::int64_t kMomentBlock = 256;  // elements per absmax

class DynamicMap {
 public:
  // Values in [-1, 1], for first moments.
  static const DynamicMap& Signed();
  // Values in [0, 1], for second moments.
  static const DynamicMap& Unsigned();

  float Value(std::uint8_t code) const { return values_[code]; }
  // The code of the nearest value; of the lower one if x is exactly between two. x: finite, in [-1, 1], or [0, 1] for
  // an unsigned map.
  std::uint8_t Nearest(float x) const {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    std::uint32_t code = first_[bits >> kKeyShift];
    while (code < 255 && x > midpoints_[code]) ++code;
    return static_cast<std::uint8_t>(code);
  }

 private:
  explicit DynamicMap(bool is_signed);

  // A key is the upper half of a float: sign, exponent and seven bits of the mantissa. Few midpoints are within the
  // floats of one key, so the loop in Nearest ends soon.
  static constexpr int kKeyShift = 16;

  std::array<float, 256> values_;     // ascending
  std::array<float, 255> midpoints_;  // between neighbours, rounded down to f32
  std::vector<std::uint8_t> first_;   // by key: the code of the least float with that key
};

}  // namespace nibble::trainer
