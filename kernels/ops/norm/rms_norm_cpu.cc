// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/norm/rms_norm_launch.h"

namespace nibble::kernels {

LaunchResult RmsNormCpu(const RmsNormArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float lanes[16] = {};
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float x = Element(args.x, row, k);
        lanes[k % 16] = std::fma(x, x, lanes[k % 16]);
      }
      const float rstd = 1.0f / std::sqrt(TreeSum(lanes) / static_cast<float>(args.x.cols) + args.eps);
      if (args.rstd != nullptr) args.rstd[row] = rstd;
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        SetElement(args.y, row, k, Element(args.x, row, k) * rstd * args.weight[k]);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
