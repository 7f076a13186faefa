// Plain loops: what the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/ops/ternarise_table.h"

namespace nibble::kernels {
namespace {

float Element(const ConstMatrix& m, std::int64_t row, std::int64_t k) {
  return m.dtype == DType::kF32 ? m.Row<float>(row)[k] : ToFloat(m.Row<BF16>(row)[k]);
}

double RowSum(const ConstMatrix& w, std::int64_t row) {
  double lanes[16] = {};
  for (std::int64_t k = 0; k < w.cols; ++k) lanes[k % 16] += static_cast<double>(std::fabs(Element(w, row, k)));
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

void PutCode(std::uint8_t* bytes, std::int64_t at, int shift, int code) {
  bytes[at] = static_cast<std::uint8_t>((bytes[at] & ~(3 << shift)) | (code + 1) << shift);
}

}  // namespace

LaunchResult TernariseCpu(const TernariseArgs& args, const Stream& stream) {
  const ConstMatrix& w = args.w;
  std::vector<double> sums(static_cast<std::size_t>(w.rows));
  stream.ParallelFor(w.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) sums[static_cast<std::size_t>(row)] = RowSum(w, row);
  });
  double total = 0.0;
  for (const double sum : sums) total += sum;
  const float mean = static_cast<float>(total / (static_cast<double>(w.rows) * static_cast<double>(w.cols)));
  const float scale = mean < kTernaryMinScale ? kTernaryMinScale : mean;  // NaN stays
  const float inverse = 1.0f / scale;
  std::fill_n(args.scale, w.rows, scale);
  const std::int64_t row_bytes = TernaryRowBytes(w.cols);
  if (args.rows != nullptr) std::memset(args.rows, 0, static_cast<std::size_t>(w.rows * row_bytes));
  if (args.tiles != nullptr) std::memset(args.tiles, 0x55, static_cast<std::size_t>(PackedTernaryBytes(w.rows, w.cols)));
  for (std::int64_t row = 0; row < w.rows; ++row) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const float rounded = std::nearbyint(Element(w, row, k) * inverse);
      const int code = rounded > 0.0f ? 1 : rounded < 0.0f ? -1 : 0;
      if (args.rows != nullptr) PutCode(args.rows, row * row_bytes + k / 4, static_cast<int>(k % 4 * 2), code);
      if (args.tiles != nullptr) PutCode(args.tiles, TernaryByte(TernaryPaddedK(w.cols), row, k), TernaryShift(k), code);
    }
  }
  return {};
}

}  // namespace nibble::kernels
