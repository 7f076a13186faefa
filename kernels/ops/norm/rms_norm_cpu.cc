// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/ops/norm/rms_norm_table.h"

namespace nibble::kernels {
namespace {

float Element(const ConstMatrix& m, std::int64_t row, std::int64_t k) {
  return m.dtype == DType::kF32 ? m.Row<float>(row)[k] : ToFloat(m.Row<BF16>(row)[k]);
}

}  // namespace

LaunchResult RmsNormCpu(const RmsNormArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float lanes[16] = {};
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float x = Element(args.x, row, k);
        lanes[k % 16] = std::fma(x, x, lanes[k % 16]);
      }
      for (int half = 8; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
      }
      const float rstd = 1.0f / std::sqrt(lanes[0] / static_cast<float>(args.x.cols) + args.eps);
      if (args.rstd != nullptr) args.rstd[row] = rstd;
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float y = Element(args.x, row, k) * rstd * args.weight[k];
        if (args.y.dtype == DType::kF32) {
          args.y.Row<float>(row)[k] = y;
        } else {
          args.y.Row<BF16>(row)[k] = ToBF16(y);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
