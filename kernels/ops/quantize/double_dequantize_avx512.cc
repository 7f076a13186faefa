// The AVX-512 path of double_dequantize.
#include "kernels/ops/quantize/double_dequantize_blocks.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {
namespace {

struct Avx512 {
  static void Block(const std::int8_t* codes, int n, float factor, float offset, float* absmax) {
    const Vec16Avx512 scale = Vec16Avx512::Set1(factor);
    const Vec16Avx512 mean = Vec16Avx512::Set1(offset);
    int i = 0;
    for (; i + 16 <= n; i += 16) (Vec16Avx512::Load(codes + i) / scale + mean).Store(absmax + i);
    for (; i < n; ++i) absmax[i] = static_cast<float>(codes[i]) / factor + offset;
  }
};

}  // namespace

LaunchResult DoubleDequantizeAvx512(const DoubleDequantizeArgs& args, const Stream& stream) {
  return DoubleDequantizeOn<Avx512>(args, stream);
}

}  // namespace nibble::kernels
