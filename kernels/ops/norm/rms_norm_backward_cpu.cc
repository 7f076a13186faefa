// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/norm/rms_norm_backward_launch.h"

namespace nibble::kernels {

LaunchResult RmsNormBackwardCpu(const RmsNormBackwardArgs& args, const Stream& stream) {
  if (args.grad_weight != nullptr) {  // first: grad_x may be grad_y
    for (std::int64_t k = 0; k < args.x.cols; ++k) {
      float sum = 0.0f;
      for (std::int64_t row = 0; row < args.x.rows; ++row) {
        sum = std::fma(Element(args.grad_y, row, k), Element(args.x, row, k) * args.rstd[row], sum);
      }
      args.grad_weight[k] = sum;
    }
  }
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float lanes[16] = {};
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float gw = Element(args.grad_y, row, k) * args.weight[k];
        lanes[k % 16] = std::fma(gw, Element(args.x, row, k), lanes[k % 16]);
      }
      const float rstd = args.rstd[row];
      const float c = rstd * rstd * (TreeSum(lanes) / static_cast<float>(args.x.cols));
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float gw = Element(args.grad_y, row, k) * args.weight[k];
        SetElement(args.grad_x, row, k, rstd * (gw - Element(args.x, row, k) * c));
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
