// Plain loops: the reference for the fast paths, which must agree within a bound, not in bits (BEST_EFFORT).
#include <cmath>

#include "kernels/ops/matmul/matmul_nf4_launch.h"

namespace nibble::kernels {
namespace {

template <typename X, typename Y>
void Multiply(const MatmulNf4Args& args, const Stream& stream) {
  const std::int64_t k = args.w.cols;
  stream.ParallelFor(args.w.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const std::uint8_t* codes = args.w.codes + n * Nf4RowBytes(k);
      const float* absmax = args.w.absmax + n * Nf4RowBlocks(k, args.w.block);
      for (std::int64_t m = 0; m < args.x.rows; ++m) {
        const X* x = args.x.Row<X>(m);
        float sum = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const unsigned code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15u;
          const float w = ToFloat(RoundTo<X>(kNf4Book[code] * absmax[i / args.w.block]));
          sum = std::fma(ToFloat(x[i]), w, sum);
        }
        args.y.Row<Y>(m)[n] = RoundTo<Y>(args.bias == nullptr ? sum : sum + args.bias[n]);
      }
    }
  });
}

}  // namespace

LaunchResult MatmulNf4Cpu(const MatmulNf4Args& args, const Stream& stream) {
  const bool x_f32 = args.x.dtype == DType::kF32;
  const bool y_f32 = args.y.dtype == DType::kF32;
  if (x_f32 && y_f32) Multiply<float, float>(args, stream);
  if (x_f32 && !y_f32) Multiply<float, BF16>(args, stream);
  if (!x_f32 && y_f32) Multiply<BF16, float>(args, stream);
  if (!x_f32 && !y_f32) Multiply<BF16, BF16>(args, stream);
  return {};
}

}  // namespace nibble::kernels
