// Plain loops: the reference for the fast paths, which must agree within a bound, not in bits (BEST_EFFORT).
#include <cmath>

#include "kernels/element.h"
#include "kernels/ops/matmul/matmul_bf16_launch.h"

namespace nibble::kernels {

LaunchResult MatmulBf16Cpu(const MatmulBf16Args& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const BF16* w = args.w.Row<BF16>(n);
      for (std::int64_t m = 0; m < args.x.rows; ++m) {
        const BF16* x = args.x.Row<BF16>(m);
        float sum = 0;
        for (std::int64_t i = 0; i < args.x.cols; ++i) sum = std::fma(ToFloat(x[i]), ToFloat(w[i]), sum);
        SetElement(args.y, m, n, sum);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
