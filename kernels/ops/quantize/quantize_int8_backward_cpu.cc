// Plain loops, the only path of this op.
#include <cmath>
#include <vector>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/quantize/quantize_int8_backward_launch.h"

namespace nibble::kernels {
namespace {

// Values of a row that the path through the scale needs.
struct RowFacts {
  double sum = 0.0;
  float absmax = -1.0f;
  std::int64_t argmax = 0;
};

RowFacts FactsOf(const QuantizeInt8BackwardArgs& args, std::int64_t row) {
  RowFacts facts;
  const float inverse = 1.0f / args.q.scale[row];
  facts.sum = LaneSum64(args.x.cols, [&](std::int64_t k) {
    const std::int64_t at = row * args.q.stride + k;
    const float code = static_cast<float>(args.how.bits == 16 ? args.q.wide_codes[at] : args.q.codes[at]);
    return static_cast<double>(Element(args.grad_y, row, k) * (code - Element(args.x, row, k) * inverse));
  });
  for (std::int64_t k = 0; k < args.x.cols; ++k) {
    const float magnitude = std::fabs(Element(args.x, row, k));
    if (magnitude > facts.absmax) {
      facts.absmax = magnitude;
      facts.argmax = k;
    }
  }
  return facts;
}

}  // namespace

LaunchResult QuantizeInt8BackwardCpu(const QuantizeInt8BackwardArgs& args, const Stream& stream) {
  const std::int64_t rows = args.x.rows;
  const bool through_scale = args.scale_grad && args.ste != Ste::kIdentity;
  std::vector<RowFacts> facts(static_cast<std::size_t>(through_scale ? rows : 0));
  std::int64_t largest = 0;  // for per_tensor: the row that holds the largest element
  double total = 0.0;
  if (through_scale) {
    stream.ParallelFor(rows, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) facts[static_cast<std::size_t>(row)] = FactsOf(args, row);
    });
    total = LaneSum64(rows, [&](std::int64_t row) { return facts[static_cast<std::size_t>(row)].sum; });
    for (std::int64_t row = 0; row < rows; ++row) {
      if (facts[static_cast<std::size_t>(row)].absmax > facts[static_cast<std::size_t>(largest)].absmax) largest = row;
    }
  }
  stream.ParallelFor(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t argmax = -1;
      float extra = 0.0f;
      if (through_scale && (!args.how.per_tensor || row == largest)) {
        const RowFacts& f = facts[static_cast<std::size_t>(row)];
        if (f.absmax >= args.how.min_absmax) {
          const float t = static_cast<float>(args.how.per_tensor ? total : f.sum);
          const float magnitude = t / MaxCode(args.how.bits);
          argmax = f.argmax;
          extra = Element(args.x, row, argmax) < 0.0f ? -magnitude : magnitude;
        }
      }
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float g = Element(args.grad_y, row, k);
        SetElement(args.grad_x, row, k, k == argmax ? g + extra : g);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
