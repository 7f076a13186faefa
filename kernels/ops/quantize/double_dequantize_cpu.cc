#include "kernels/ops/quantize/double_dequantize_blocks.h"

namespace nibble::kernels {
namespace {

struct Plain {
  static void Block(const std::int8_t* codes, int n, float factor, float offset, float* absmax) {
    for (int i = 0; i < n; ++i) absmax[i] = static_cast<float>(codes[i]) / factor + offset;
  }
};

}  // namespace

LaunchResult DoubleDequantizeCpu(const DoubleDequantizeArgs& args, const Stream& stream) {
  return DoubleDequantizeOn<Plain>(args, stream);
}

}  // namespace nibble::kernels
