// Plain loops: what the fast paths must equal.
#include <cmath>
#include <vector>

#include "kernels/ops/quantize_int8_backward_table.h"

namespace nibble::kernels {
namespace {

float Element(const ConstMatrix& m, std::int64_t row, std::int64_t k) {
  return m.dtype == DType::kF32 ? m.Row<float>(row)[k] : ToFloat(m.Row<BF16>(row)[k]);
}

// What the path through the scale needs of a row.
struct RowFacts {
  double sum = 0.0;
  float absmax = -1.0f;
  std::int64_t argmax = 0;
};

RowFacts FactsOf(const QuantizeInt8BackwardArgs& args, std::int64_t row) {
  RowFacts facts;
  double lanes[16] = {};
  const float inverse = 1.0f / args.q.scale[row];
  for (std::int64_t k = 0; k < args.x.cols; ++k) {
    const float x = Element(args.x, row, k);
    const std::int64_t at = row * args.q.stride + k;
    const float code = args.how.bits == 16 ? args.q.wide_codes[at] : args.q.codes[at];
    lanes[k % 16] += static_cast<double>(Element(args.grad_y, row, k) * (code - x * inverse));
    if (std::fabs(x) > facts.absmax) {
      facts.absmax = std::fabs(x);
      facts.argmax = k;
    }
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  facts.sum = lanes[0];
  return facts;
}

void Store(const Matrix& m, std::int64_t row, std::int64_t k, float value) {
  if (m.dtype == DType::kF32) {
    m.Row<float>(row)[k] = value;
  } else {
    m.Row<BF16>(row)[k] = ToBF16(value);
  }
}

}  // namespace

LaunchResult QuantizeInt8BackwardCpu(const QuantizeInt8BackwardArgs& args, const Stream& stream) {
  const std::int64_t rows = args.x.rows;
  const bool through_scale = args.scale_grad && args.ste != Ste::kIdentity;
  std::vector<RowFacts> facts(static_cast<std::size_t>(through_scale ? rows : 0));
  std::int64_t largest = 0;  // of per_tensor: the row that holds the element
  double total = 0.0;
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(facts.size()); ++row) {
    facts[static_cast<std::size_t>(row)] = FactsOf(args, row);
    total += facts[static_cast<std::size_t>(row)].sum;
    if (facts[static_cast<std::size_t>(row)].absmax > facts[static_cast<std::size_t>(largest)].absmax) largest = row;
  }
  stream.ParallelFor(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t argmax = -1;
      float extra = 0.0f;
      if (through_scale && (!args.how.per_tensor || row == largest)) {
        const RowFacts& f = facts[static_cast<std::size_t>(row)];
        if (f.absmax >= args.how.min_absmax) {
          const float t = static_cast<float>(args.how.per_tensor ? total : f.sum) / MaxCode(args.how.bits);
          argmax = f.argmax;
          extra = Element(args.x, row, argmax) < 0.0f ? -t : t;
        }
      }
      for (std::int64_t k = 0; k < args.x.cols; ++k) {
        const float g = Element(args.grad_y, row, k);
        Store(args.grad_x, row, k, k == argmax ? g + extra : g);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
