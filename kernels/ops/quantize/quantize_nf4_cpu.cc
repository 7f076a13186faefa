#include "kernels/ops/quantize/quantize_nf4_rows.h"

namespace nibble::kernels {
namespace {

struct Plain {
  static unsigned Code(float v) {
    unsigned code = 0;
    for (const float threshold : kNf4Thresholds) code += v > threshold ? 1u : 0u;
    return code;
  }

  template <typename T>
  static float Block(const T* x, std::uint8_t* codes) {
    // Compared as integers: this orders magnitudes and puts infinity and NaN above all of them, so neither can be
    // missed.
    std::uint32_t top = 0;
    for (std::int64_t i = 0; i < kNf4Block; ++i) {
      top = std::max(top, std::bit_cast<std::uint32_t>(ToFloat(x[i])) & 0x7fffffffu);
    }
    const float absmax = std::bit_cast<float>(top);
    const float inverse = Nf4Inverse(absmax);
    for (std::int64_t i = 0; i < kNf4Block; i += 2) {
      const unsigned high = Code(ToFloat(x[i]) * inverse);
      const unsigned low = Code(ToFloat(x[i + 1]) * inverse);
      codes[i / 2] = static_cast<std::uint8_t>(high << 4 | low);
    }
    return absmax;
  }
};

}  // namespace

LaunchResult QuantizeNf4Cpu(const QuantizeNf4Args& args, const Stream& stream) {
  return QuantizeNf4On<Plain>(args, stream);
}

}  // namespace nibble::kernels
