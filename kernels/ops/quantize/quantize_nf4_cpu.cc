// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/element.h"
#include "kernels/ops/quantize/quantize_nf4_launch.h"

namespace nibble::kernels {
namespace {

// The largest magnitude of x[row, first .. last). Compared as integers: this orders magnitudes and puts infinity and
// NaN above all of them, so neither can be missed.
float AbsMax(const ConstMatrix& x, std::int64_t row, std::int64_t first, std::int64_t last) {
  std::uint32_t top = 0;
  for (std::int64_t k = first; k < last; ++k) {
    top = std::max(top, std::bit_cast<std::uint32_t>(Element(x, row, k)) & 0x7fffffffu);
  }
  return std::bit_cast<float>(top);
}

unsigned Code(float value) {
  unsigned code = 0;
  for (const float threshold : kNf4Thresholds) code += value > threshold ? 1u : 0u;
  return code;
}

}  // namespace

LaunchResult QuantizeNf4Cpu(const QuantizeNf4Args& args, const Stream& stream) {
  const std::int64_t cols = args.x.cols;
  const std::int64_t row_blocks = Nf4RowBlocks(cols, args.block);
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::uint8_t* codes = args.codes + row * Nf4RowBytes(cols);
      for (std::int64_t block = 0; block < row_blocks; ++block) {
        const std::int64_t first = block * args.block;
        const std::int64_t last = std::min(first + args.block, cols);
        const float absmax = AbsMax(args.x, row, first, last);
        const float inverse = 1.0f / absmax;
        // With a scale of 0, every finite element gets code 7, which stands for the value 0.
        const float scale = inverse <= std::numeric_limits<float>::max() ? inverse : 0.0f;
        args.absmax[row * row_blocks + block] = absmax;
        for (std::int64_t k = first; k < last; k += 2) {
          const unsigned high = Code(Element(args.x, row, k) * scale);
          const unsigned low = k + 1 < last ? Code(Element(args.x, row, k + 1) * scale) : 7u;
          codes[k / 2] = static_cast<std::uint8_t>(high << 4 | low);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
