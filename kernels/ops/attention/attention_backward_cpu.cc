// Plain loops: the reference that the fast paths must equal.
#include <cmath>
#include <vector>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/ops/attention/attention_backward_launch.h"

namespace nibble::kernels {
namespace {

// Stores grad_q of one head of a segment. Overwrites grad_k and grad_v [size, d] with the head's sums.
void OneHead(const AttentionBackwardArgs& args, std::int64_t begin, std::int64_t size, std::int64_t head, float* grad_k,
             float* grad_v) {
  const std::int64_t d = args.q.cols / args.num_heads;
  const std::int64_t q_column = head * d;
  const std::int64_t kv_column = head / (args.num_heads / args.num_kv_heads) * d;
  for (std::int64_t i = 0; i < size * d; ++i) grad_k[i] = grad_v[i] = 0.0f;
  std::vector<float> grad_q(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < size; ++i) {
    const auto q = [&](std::int64_t c) { return Element(args.q, begin + i, q_column + c); };
    const auto g = [&](std::int64_t c) { return Element(args.grad_out, begin + i, q_column + c); };
    float lanes[16] = {};
    for (std::int64_t c = 0; c < d; ++c)
      lanes[c % 16] = std::fma(g(c), Element(args.out, begin + i, q_column + c), lanes[c % 16]);
    const float delta = TreeSum(lanes);
    grad_q.assign(grad_q.size(), 0.0f);
    for (std::int64_t j = 0; j <= i; ++j) {
      float score = 0, grad_p = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        score = std::fma(q(c), Element(args.k, begin + j, kv_column + c), score);
        grad_p = std::fma(g(c), Element(args.v, begin + j, kv_column + c), grad_p);
      }
      const float p = Exp(score * args.scale - args.logsumexp.Row<float>(begin + i)[head]);
      const float ds = p * (grad_p - delta);
      for (std::int64_t c = 0; c < d; ++c) {
        float& to_q = grad_q[static_cast<std::size_t>(c)];
        to_q = std::fma(ds, Element(args.k, begin + j, kv_column + c), to_q);
        grad_k[j * d + c] = std::fma(ds, q(c), grad_k[j * d + c]);
        grad_v[j * d + c] = std::fma(p, g(c), grad_v[j * d + c]);
      }
    }
    for (std::int64_t c = 0; c < d; ++c)
      SetElement(args.grad_q, begin + i, q_column + c, args.scale * grad_q[static_cast<std::size_t>(c)]);
  }
}

}  // namespace

LaunchResult AttentionBackwardCpu(const AttentionBackwardArgs& args, const Stream& stream) {
  const std::int64_t d = args.q.cols / args.num_heads;
  const std::int64_t group = args.num_heads / args.num_kv_heads;
  stream.ParallelFor(args.num_segments * args.num_kv_heads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t unit = first; unit < last; ++unit) {
      const std::int64_t segment = unit / args.num_kv_heads, kv_head = unit % args.num_kv_heads;
      const std::int64_t begin = args.segments[segment], size = args.segments[segment + 1] - begin;
      std::vector<float> grad_k(static_cast<std::size_t>(size * d)), grad_v(grad_k.size());
      std::vector<float> sum_k, sum_v;
      for (std::int64_t h = 0; h < group; ++h) {
        OneHead(args, begin, size, kv_head * group + h, grad_k.data(), grad_v.data());
        if (h == 0) {
          sum_k = grad_k;
          sum_v = grad_v;
          continue;
        }
        for (std::size_t i = 0; i < sum_k.size(); ++i) {
          sum_k[i] += grad_k[i];
          sum_v[i] += grad_v[i];
        }
      }
      for (std::int64_t j = 0; j < size; ++j) {
        for (std::int64_t c = 0; c < d; ++c) {
          const auto at = static_cast<std::size_t>(j * d + c);
          SetElement(args.grad_k, begin + j, kv_head * d + c, args.scale * sum_k[at]);
          SetElement(args.grad_v, begin + j, kv_head * d + c, sum_v[at]);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
