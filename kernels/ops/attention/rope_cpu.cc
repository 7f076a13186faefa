// Plain loops: the reference that the fast paths must equal.
#include <cmath>

#include "kernels/ops/attention/rope_launch.h"

namespace nibble::kernels {
namespace {

template <typename T>
void Rotate(T* head, std::int64_t half, const float* cos, const float* sin, bool backward) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = ToFloat(head[i]);
    const float b = ToFloat(head[half + i]);
    const float s = backward ? -sin[i] : sin[i];
    head[i] = RoundTo<T>(std::fma(-b, s, a * cos[i]));
    head[half + i] = RoundTo<T>(std::fma(a, s, b * cos[i]));
  }
}

}  // namespace

LaunchResult RopeCpu(const RopeArgs& args, const Stream& stream) {
  const std::int64_t head_dim = args.x.cols / args.num_heads;
  const std::int64_t half = head_dim / 2;
  stream.ParallelFor(args.x.rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* cos = args.cos + args.position[r] * half;
      const float* sin = args.sin + args.position[r] * half;
      for (std::int64_t h = 0; h < args.num_heads; ++h) {
        if (args.x.dtype == DType::kF32) {
          Rotate(args.x.Row<float>(r) + h * head_dim, half, cos, sin, args.backward);
        } else {
          Rotate(args.x.Row<BF16>(r) + h * head_dim, half, cos, sin, args.backward);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
