// The AVX2 path of double_dequantize.
#include "kernels/ops/quantize/double_dequantize_blocks.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {
namespace {

struct Avx2 {
  static void Block(const std::int8_t* codes, int n, float factor, float offset, float* absmax) {
    const Vec16Avx2 scale = Vec16Avx2::Set1(factor);
    const Vec16Avx2 mean = Vec16Avx2::Set1(offset);
    int i = 0;
    for (; i + 16 <= n; i += 16) (Vec16Avx2::Load(codes + i) / scale + mean).Store(absmax + i);
    for (; i < n; ++i) absmax[i] = static_cast<float>(codes[i]) / factor + offset;
  }
};

}  // namespace

LaunchResult DoubleDequantizeAvx2(const DoubleDequantizeArgs& args, const Stream& stream) {
  return DoubleDequantizeOn<Avx2>(args, stream);
}

}  // namespace nibble::kernels
