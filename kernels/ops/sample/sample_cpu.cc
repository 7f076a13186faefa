// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/ops/sample/sample_launch.h"
#include "kernels/philox.h"

namespace nibble::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kSumBlock = 1024;  // number of weights that are summed in f32; the blocks' sums are f64

bool HasDistribution(const float* x, std::int64_t size) {
  return std::all_of(x, x + size, [](float logit) { return logit < kInf; }) &&  // false for NaN
         std::any_of(x, x + size, [](float logit) { return logit > -kInf; });
}

std::int32_t Draw(const float* x, std::int64_t size, const SampleParams& p) {
  const auto greedy = static_cast<std::int32_t>(std::max_element(x, x + size) - x);  // the first of equal maxima
  if (p.temperature == 0.0f) return greedy;
  const auto weight = [&](std::int64_t id) { return Exp((x[id] - x[greedy]) / p.temperature); };

  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return x[a] > x[b]; });

  const bool top_k = p.top_k > 0 && p.top_k < size;
  double total = 0.0;
  if (top_k) {
    const float kth = x[ids[static_cast<std::size_t>(p.top_k) - 1]];
    std::erase_if(ids, [&](std::int32_t id) { return x[id] < kth; });
    for (const std::int32_t id : ids) total += static_cast<double>(weight(id));
  } else {
    for (std::int64_t block = 0; block < size; block += kSumBlock) {
      const std::int64_t n = std::min(kSumBlock, size - block);
      total += static_cast<double>(LaneSum(n, [&](std::int64_t i) { return weight(block + i); }));
    }
  }

  std::vector<double> sums;  // sums[i]: the weights of the candidates 0 to i
  for (const std::int32_t id : ids) {
    const float w = weight(id);
    const double before = sums.empty() ? 0.0 : sums.back();
    const bool outside_top_p = p.top_p < 1.0f && before >= static_cast<double>(p.top_p) * total;
    if (!sums.empty() && (outside_top_p || w < p.min_p || w == 0.0f)) break;
    sums.push_back(before + static_cast<double>(w));
  }

  const bool filtered = top_k || p.top_p < 1.0f || p.min_p > 0.0f;
  const double target = PhiloxUniform(p.seed, p.counter) * (filtered ? sums.back() : total);
  std::size_t drawn = 0;
  while (drawn + 1 < sums.size() && sums[drawn] <= target) ++drawn;  // the last if rounding puts target past its sum
  return ids[drawn];
}

}  // namespace

LaunchResult SampleCpu(const SampleArgs& args, const Stream& stream) {
  const std::int64_t size = args.logits.cols;
  stream.ParallelFor(args.logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      std::vector<float> x(args.logits.Row<float>(t), args.logits.Row<float>(t) + size);
      for (std::int64_t i = 0; args.allowed != nullptr && i < size; ++i) {
        if ((args.AllowedWords(t)[i / 32] >> (i % 32) & 1) == 0) x[static_cast<std::size_t>(i)] = -kInf;
      }
      args.token[t] = HasDistribution(x.data(), size) ? Draw(x.data(), size, args.params[t]) : -1;
    }
  });
  return {};
}

}  // namespace nibble::kernels
