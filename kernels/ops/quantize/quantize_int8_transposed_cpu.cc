// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/element.h"
#include "kernels/ops/quantize/quantize_int8_transposed_launch.h"
#include "kernels/stochastic.h"

namespace nibble::kernels {

LaunchResult QuantizeInt8TransposedCpu(const QuantizeInt8TransposedArgs& args, const Stream& stream) {
  const float max_code = MaxCode(args.how.bits);
  const std::int64_t rows = args.x.rows;
  float shared_absmax = 0.0f;  // of all columns if per_tensor, else 0
  for (std::int64_t r = 0; args.how.per_tensor && r < rows; ++r) {
    for (std::int64_t c = 0; c < args.x.cols; ++c) {
      shared_absmax = std::max(shared_absmax, std::fabs(Element(args.x, r, c)));
    }
  }
  const std::int64_t padded = args.tiles == nullptr ? args.stride : Int8PaddedK(rows);
  // One tile of 16 columns at a time: the columns of a tile share memory in the packed form.
  const std::int64_t tiles = RoundUp(args.x.cols, kInt8TileRows) / kInt8TileRows;
  stream.ParallelFor(tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(padded));
    for (std::int64_t c = begin * kInt8TileRows; c < end * kInt8TileRows; ++c) {
      std::fill(codes.begin(), codes.end(), std::int8_t{0});
      std::int32_t sum = 0;
      if (c < args.x.cols) {
        float absmax = shared_absmax;
        for (std::int64_t r = 0; r < rows; ++r) absmax = std::max(absmax, std::fabs(Element(args.x, r, c)));
        const float scale = std::max(absmax, args.how.min_absmax) / max_code;
        const float inverse = 1.0f / scale;
        args.scale[c] = scale;
        for (std::int64_t r = 0; r < rows; ++r) {
          const float v = Element(args.x, r, c) * inverse;
          const float rounded = args.how.stochastic.enabled ? RoundAt(args.how.stochastic, r, c, v) : std::nearbyint(v);
          const float code = std::clamp(rounded, -max_code, max_code);
          codes[static_cast<std::size_t>(r)] = static_cast<std::int8_t>(code);
          sum += static_cast<std::int32_t>(code);
        }
      }
      if (args.tiles == nullptr) {
        if (c < args.x.cols) std::copy(codes.begin(), codes.end(), args.codes + c * args.stride);
        continue;
      }
      std::int8_t* tile = args.tiles + c / kInt8TileRows * kInt8TileRows * padded + c % kInt8TileRows * 4;
      for (std::int64_t r = 0; r < padded; ++r) tile[r / 4 * 64 + r % 4] = codes[static_cast<std::size_t>(r)];
      args.row_sum[c] = sum;
    }
  });
  return {};
}

}  // namespace nibble::kernels
