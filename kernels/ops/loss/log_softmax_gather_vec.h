// The body of log_softmax_gather.h for any Vec (vec16_*.h).
#pragma once
#include <limits>

#include "kernels/math.h"
#include "kernels/ops/loss/log_softmax_gather_launch.h"
#include "kernels/stream.h"
#include "kernels/top_select.h"

namespace nibble::kernels {

template <typename Vec>
float LogSumExp(const WholeRow<Vec>& row, float max) {
  const Vec against = Vec::Set1(max);
  Vec sum = Vec::Zero();
  for (std::int64_t i = 0; i < row.size(); i += Vec::kLanes) sum = sum + Exp(row.Load(i) - against);
  return max + Log(sum.ReduceSum());
}

template <typename Vec>
LaunchResult LogSoftmaxGatherVec(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  using Select = TopSelect<Vec, WholeRow<Vec>>;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  stream.ParallelFor(args.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = static_cast<const float*>(args.logits.data) + t * args.logits.stride;
      const WholeRow<Vec> row(x, args.logits.cols);
      const auto max = Select::Max(row);
      const float logsumexp = max.usable ? LogSumExp(row, max.value) : kNaN;
      if (args.logsumexp != nullptr) args.logsumexp[t] = logsumexp;
      if (args.target != nullptr) args.logprob[t] = args.target[t] < 0 ? 0.0f : x[args.target[t]] - logsumexp;
      if (args.top_n == 0) continue;
      std::int32_t* id = args.top_id + t * args.top_n;
      float* logprob = args.top_logprob + t * args.top_n;
      if (!max.usable) {
        for (std::int64_t i = 0; i < args.top_n; ++i) {
          id[i] = -1;
          logprob[i] = kNaN;
        }
        continue;
      }
      for (const auto& entry : Select::Largest(row, args.top_n)) {
        *id++ = entry.id;
        *logprob++ = entry.value - logsumexp;
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
