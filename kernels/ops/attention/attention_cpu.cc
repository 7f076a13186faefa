// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/ops/attention/attention_launch.h"

namespace nibble::kernels {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr std::size_t kKeys = static_cast<std::size_t>(kKvPageTokens);

// One head of one row. `pages` is the row's page table.
template <typename T>
void AttendRow(const AttentionArgs& args, std::int64_t row, std::int64_t head, const std::int32_t* pages) {
  const KvCacheView& cache = args.cache;
  const std::int64_t d = cache.head_dim;
  const std::int64_t kv_head = head / (args.num_heads / cache.num_kv_heads);
  const std::int64_t position = args.rows.position[row];

  std::vector<float> q(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < d; ++i) q[static_cast<std::size_t>(i)] = Element(args.q, row, head * d + i);
  std::vector<float> o(q.size(), 0.0f);
  float max = kNegInf;
  float sum = 0;
  for (std::int64_t block = 0; block * kKvPageTokens <= position; ++block) {
    const T* keys = static_cast<const T*>(cache.base) + cache.SlabOffset(pages[block], args.layer, kv_head);
    const T* values = keys + d * kKvPageTokens;
    const std::size_t seen = static_cast<std::size_t>(std::min(kKvPageTokens, position + 1 - block * kKvPageTokens));

    float score[kKeys];
    float new_max = max;
    for (std::size_t j = 0; j < kKeys; ++j) {
      score[j] = kNegInf;
      if (j >= seen) continue;
      float chain = 0;
      for (std::size_t i = 0; i < q.size(); ++i) chain = std::fma(q[i], ToFloat(keys[i * kKeys + j]), chain);
      score[j] = chain * args.scale;
      new_max = score[j] > new_max ? score[j] : new_max;
    }

    float p[kKeys];
    for (std::size_t j = 0; j < kKeys; ++j) p[j] = Exp(score[j] - new_max);
    const float correction = Exp(max - new_max);
    sum = std::fma(sum, correction, LaneSum(kKvPageTokens, [&](std::int64_t j) { return p[j]; }));
    max = new_max;

    for (std::size_t i = 0; i < o.size(); ++i) {
      o[i] *= correction;
      for (std::size_t j = 0; j < seen; ++j) o[i] = std::fma(p[j], ToFloat(values[j * o.size() + i]), o[i]);
    }
  }

  for (std::int64_t i = 0; i < d; ++i) {
    SetElement(args.out, row, head * d + i, o[static_cast<std::size_t>(i)] / sum);
  }
  if (args.logsumexp != nullptr) args.logsumexp[row * args.num_heads + head] = max + Log(sum);
}

}  // namespace

LaunchResult AttentionCpu(const AttentionArgs& args, const Stream& stream) {
  const KvRows& rows = args.rows;
  stream.ParallelFor(rows.num_rows * args.num_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t row = unit / args.num_heads;
      const std::int32_t* pages = rows.page_tables + rows.sequence[row] * rows.pages_per_sequence;
      if (args.cache.dtype == DType::kF32) {
        AttendRow<float>(args, row, unit % args.num_heads, pages);
      } else {
        AttendRow<BF16>(args, row, unit % args.num_heads, pages);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
