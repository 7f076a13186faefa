// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/quantize/double_quantize_launch.h"

namespace nibble::kernels {

LaunchResult DoubleQuantizeCpu(const DoubleQuantizeArgs& args, const Stream& stream) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < args.n; ++i) sum += static_cast<double>(args.absmax[i]);
  const float offset = args.n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(args.n));
  *args.offset = offset;
  stream.ParallelFor(DoubleQuantBlocks(args.n, args.block), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t first = block * args.block;
      const std::int64_t last = std::min(first + args.block, args.n);
      float max = 0.0f;
      for (std::int64_t i = first; i < last; ++i) max = std::max(max, std::fabs(args.absmax[i] - offset));
      const float ratio = 128.0f / max;
      const float factor = ratio <= std::numeric_limits<float>::max() ? ratio : 1.0f;
      args.factor[block] = factor;
      for (std::int64_t i = first; i < last; ++i) {
        const float code = std::nearbyint((args.absmax[i] - offset) * factor);
        args.codes[i] = static_cast<std::int8_t>(std::clamp(code, -128.0f, 127.0f));
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
