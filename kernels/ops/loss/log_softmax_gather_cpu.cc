// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/ops/loss/log_softmax_gather_launch.h"

namespace nibble::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

bool HasDistribution(const float* x, std::int64_t size) {
  return std::all_of(x, x + size, [](float logit) { return logit < kInf; }) &&  // false for NaN
         std::any_of(x, x + size, [](float logit) { return logit > -kInf; });
}

float LogSumExp(const float* x, std::int64_t size) {
  const float max = *std::max_element(x, x + size);
  return max + Log(LaneSum(size, [&](std::int64_t v) { return Exp(x[v] - max); }));
}

// All ids, the first n in descending order of their logits, ties to the lower id.
std::vector<std::int32_t> Ranked(const float* x, std::int64_t size, std::int64_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(),
                    [&](std::int32_t a, std::int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
  return ids;
}

}  // namespace

LaunchResult LogSoftmaxGatherCpu(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  const std::int64_t size = args.logits.cols;
  stream.ParallelFor(args.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* x = args.logits.Row<float>(t);
      const bool usable = HasDistribution(x, size);
      const float logsumexp = usable ? LogSumExp(x, size) : kNaN;
      if (args.logsumexp != nullptr) args.logsumexp[t] = logsumexp;
      if (args.target != nullptr) args.logprob[t] = args.target[t] < 0 ? 0.0f : x[args.target[t]] - logsumexp;
      if (args.top_n == 0) continue;
      const std::vector<std::int32_t> ids = usable ? Ranked(x, size, args.top_n) : std::vector<std::int32_t>{};
      for (std::int64_t i = 0; i < args.top_n; ++i) {
        const std::int32_t id = usable ? ids[static_cast<std::size_t>(i)] : -1;
        args.top_id[t * args.top_n + i] = id;
        args.top_logprob[t * args.top_n + i] = usable ? x[id] - logsumexp : kNaN;
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
