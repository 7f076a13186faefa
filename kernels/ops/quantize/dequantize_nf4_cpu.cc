// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/quantize/dequantize_nf4_launch.h"

namespace nibble::kernels {

LaunchResult DequantizeNf4Cpu(const DequantizeNf4Args& args, const Stream& stream) {
  const std::int64_t cols = args.w.cols;
  stream.ParallelFor(args.w.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::uint8_t* codes = args.w.codes + row * Nf4RowBytes(cols);
      const float* absmax = args.w.absmax + row * Nf4RowBlocks(cols, args.w.block);
      for (std::int64_t k = 0; k < cols; ++k) {
        const unsigned code = k % 2 == 0 ? codes[k / 2] >> 4 : codes[k / 2] & 15u;
        SetElement(args.out, row, k, kNf4Book[code] * absmax[k / args.w.block]);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
