// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/ops/norm/rms_norm_backward_table.h"

namespace nibble::kernels {
namespace {

float Element(const ConstMatrix& m, std::int64_t row, std::int64_t k) {
  return m.dtype == DType::kF32 ? m.Row<float>(row)[k] : ToFloat(m.Row<BF16>(row)[k]);
}

}  // namespace

LaunchResult RmsNormBackwardCpu(const RmsNormBackwardArgs& args, const Stream& stream) {
  for (std::int64_t k = 0; args.grad_weight != nullptr && k < args.x.cols; ++k) {  // first: grad_x may be grad_y
    float sum = 0.0f;
    for (std::int64_t row = 0; row < args.x.rows; ++row) {
      sum = std::fma(Element(args.grad_y, row, k), Element(args.x, row, k) * args.rstd[row], sum);
    }
    args.grad_weight[k] = sum;
  }
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float lanes[16] = {};
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float gw = Element(args.grad_y, row, k) * args.weight[k];
        lanes[k % 16] = std::fma(gw, Element(args.x, row, k), lanes[k % 16]);
      }
      for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
      }
      const float rstd = args.rstd[row];
      const float c = rstd * rstd * (lanes[0] / static_cast<float>(args.x.cols));
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float gw = Element(args.grad_y, row, k) * args.weight[k];
        const float grad = rstd * (gw - Element(args.x, row, k) * c);
        if (args.grad_x.dtype == DType::kF32) {
          args.grad_x.Row<float>(row)[k] = grad;
        } else {
          args.grad_x.Row<BF16>(row)[k] = ToBF16(grad);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
