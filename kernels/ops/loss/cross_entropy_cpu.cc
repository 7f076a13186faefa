// Plain loops: the reference that the fast paths must equal.
#include <limits>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/math.h"
#include "kernels/ops/loss/cross_entropy_launch.h"

namespace nibble::kernels {
namespace {

float LogSumExp(const ConstMatrix& logits, std::int64_t t) {
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t v = 0; v < logits.cols; ++v) {
    const float x = Element(logits, t, v);
    if (x > max) max = x;
  }
  return max + Log(LaneSum(logits.cols, [&](std::int64_t v) { return Exp(Element(logits, t, v) - max); }));
}

}  // namespace

LaunchResult CrossEntropyCpu(const CrossEntropyArgs& args, const Stream& stream) {
  const Matrix& logits = args.logits;
  stream.ParallelFor(logits.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float logsumexp = LogSumExp(logits, t);
      args.loss[t] = logsumexp - Element(logits, t, args.target[t]);
      for (std::int64_t v = 0; v < logits.cols; ++v) {
        const float p = Exp(Element(logits, t, v) - logsumexp);
        const float grad = v == args.target[t] ? p - 1.0f : p;
        SetElement(logits, t, v, grad * args.grad_scale);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
