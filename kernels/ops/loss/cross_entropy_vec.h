// The body of cross_entropy.h for any Vec (vec16_*.h).
#pragma once
#include <limits>

#include "kernels/math.h"
#include "kernels/ops/loss/cross_entropy_launch.h"

namespace nibble::kernels {

template <typename Vec, typename T>
float CrossEntropyRow(T* x, std::int64_t size, std::int32_t target, float grad_scale) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const auto load = [&](std::int64_t i) {
    return size - i >= Vec::kLanes ? Vec::Load(x + i) : Vec::LoadPartial(x + i, static_cast<int>(size - i), kLowest);
  };
  Vec max_lanes = Vec::Set1(kLowest);
  for (std::int64_t i = 0; i < size; i += Vec::kLanes) max_lanes = Vec::Max(load(i), max_lanes);
  const float max = max_lanes.ReduceMax();
  Vec sum = Vec::Zero();
  for (std::int64_t i = 0; i < size; i += Vec::kLanes) sum = sum + Exp(load(i) - Vec::Set1(max));
  const float logsumexp = max + Log(sum.ReduceSum());
  const float at_target = ToFloat(x[target]);
  for (std::int64_t i = 0; i < size; i += Vec::kLanes) {
    const Vec gradient = Exp(load(i) - Vec::Set1(logsumexp)) * Vec::Set1(grad_scale);
    if (size - i >= Vec::kLanes) {
      gradient.Store(x + i);
    } else {
      gradient.StorePartial(x + i, static_cast<int>(size - i));
    }
  }
  x[target] = RoundTo<T>((Exp(at_target - logsumexp) - 1.0f) * grad_scale);
  return logsumexp - at_target;
}

template <typename Vec>
LaunchResult CrossEntropyVec(const CrossEntropyArgs& args, const Stream& stream) {
  stream.ParallelFor(args.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      args.loss[t] =
          args.logits.dtype == DType::kF32
              ? CrossEntropyRow<Vec>(args.logits.Row<float>(t), args.logits.cols, args.target[t], args.grad_scale)
              : CrossEntropyRow<Vec>(args.logits.Row<BF16>(t), args.logits.cols, args.target[t], args.grad_scale);
    }
  });
  return {};
}

}  // namespace nibble::kernels
