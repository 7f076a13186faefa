#include <cmath>

#include "kernels/ops/quantize/double_quantize_blocks.h"

namespace nibble::kernels {
namespace {

struct Plain {
  static float MaxAbs(const float* absmax, int n, float offset) {
    float top = 0;
    for (int i = 0; i < n; ++i) top = std::max(top, std::fabs(absmax[i] - offset));
    return top;
  }
  static void Codes(const float* absmax, int n, float offset, float factor, std::int8_t* codes) {
    for (int i = 0; i < n; ++i) {
      const float code = std::nearbyint((absmax[i] - offset) * factor);
      codes[i] = static_cast<std::int8_t>(std::clamp(code, -128.0f, 127.0f));
    }
  }
};

}  // namespace

LaunchResult DoubleQuantizeCpu(const DoubleQuantizeArgs& args, const Stream& stream) {
  return DoubleQuantizeOn<Plain>(args, stream);
}

}  // namespace nibble::kernels
