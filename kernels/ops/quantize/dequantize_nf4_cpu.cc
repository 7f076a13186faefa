#include "kernels/ops/quantize/dequantize_nf4_rows.h"

namespace nibble::kernels {
namespace {

struct Plain {
  template <typename T>
  static void Block(const std::uint8_t* codes, float absmax, T* out) {
    for (std::int64_t i = 0; i < kNf4Block; i += 2) {
      const unsigned byte = codes[i / 2];
      out[i] = RoundTo<T>(kNf4Book[byte >> 4] * absmax);
      out[i + 1] = RoundTo<T>(kNf4Book[byte & 15u] * absmax);
    }
  }
};

}  // namespace

LaunchResult DequantizeNf4Cpu(const DequantizeNf4Args& args, const Stream& stream) {
  return DequantizeNf4On<Plain>(args, stream);
}

}  // namespace nibble::kernels
