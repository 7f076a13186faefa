// Plain loops: the reference that the fast paths must equal.
#include "kernels/ops/elementwise/add_launch.h"

namespace nibble::kernels {
namespace {

float At(const ConstMatrix& m, std::int64_t r, std::int64_t c) {
  return m.dtype == DType::kF32 ? m.Row<float>(r)[c] : ToFloat(m.Row<BF16>(r)[c]);
}

}  // namespace

LaunchResult AddCpu(const AddArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.x.cols; ++c) {
        const float sum = At(args.x, r, c) + At(args.y, r, c);
        if (args.x.dtype == DType::kF32) {
          args.x.Row<float>(r)[c] = sum;
        } else {
          args.x.Row<BF16>(r)[c] = ToBF16(sum);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
