// Plain loops: the reference that the fast paths must equal. formats/int8.h describes the layout of w.tiles.
#include <cmath>

#include "kernels/element.h"
#include "kernels/ops/matmul/matmul_int8_weight_launch.h"

namespace nibble::kernels {
namespace {

float Output(const MatmulInt8WeightArgs& args, std::int64_t row, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t k = 0; k < args.w.cols; ++k) {
    sum = std::fma(Element(args.x, row, k), static_cast<float>(Int8Code(args.w, n, k)), sum);
  }
  const float y = sum * args.w.scale[n];
  return args.bias == nullptr ? y : y + args.bias[n];
}

}  // namespace

LaunchResult MatmulInt8WeightCpu(const MatmulInt8WeightArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < args.x.rows; ++row) {
      for (std::int64_t n = begin; n < end; ++n) SetElement(args.y, row, n, Output(args, row, n));
    }
  });
  return {};
}

}  // namespace nibble::kernels
