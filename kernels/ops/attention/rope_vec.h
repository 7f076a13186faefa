// The body of rope.h for any Vec (vec16_*.h).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/ops/attention/rope_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Rotates the pairs (head[i], head[half + i]), i < half.
template <typename Vec, typename T>
void RotateHead(T* head, std::int64_t half, const float* cos, const float* sin, bool backward) {
  const Vec minus = Vec::Set1(-1.0f);
  for (std::int64_t i = 0; i < half; i += Vec::kLanes) {
    const int n = static_cast<int>(std::min<std::int64_t>(Vec::kLanes, half - i));
    const bool full = n == Vec::kLanes;
    const auto load = [full, n](const auto* p) { return full ? Vec::Load(p) : Vec::LoadPartial(p, n); };
    const Vec a = load(head + i);
    const Vec b = load(head + half + i);
    const Vec c = load(cos + i);
    const Vec s = backward ? load(sin + i) * minus : load(sin + i);
    const Vec first = Vec::Fma(b * minus, s, a * c);
    const Vec second = Vec::Fma(a, s, b * c);
    if (full) {
      first.Store(head + i);
      second.Store(head + half + i);
    } else {
      first.StorePartial(head + i, n);
      second.StorePartial(head + half + i, n);
    }
  }
}

template <typename Vec>
LaunchResult RopeVec(const RopeArgs& args, const Stream& stream) {
  const std::int64_t head_dim = args.x.cols / args.num_heads;
  const std::int64_t half = head_dim / 2;
  stream.ParallelFor(args.x.rows, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* cos = args.cos + args.position[r] * half;
      const float* sin = args.sin + args.position[r] * half;
      for (std::int64_t h = 0; h < args.num_heads; ++h) {
        const std::int64_t offset = r * args.x.stride + h * head_dim;
        if (args.x.dtype == DType::kF32) {
          RotateHead<Vec>(static_cast<float*>(args.x.data) + offset, half, cos, sin, args.backward);
        } else {
          RotateHead<Vec>(static_cast<BF16*>(args.x.data) + offset, half, cos, sin, args.backward);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
