// Plain loops: the reference that the fast paths must equal.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/element.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/quantize/ternarize_launch.h"

namespace nibble::kernels {
namespace {

void PutCode(std::uint8_t* bytes, std::int64_t at, int shift, int code) {
  bytes[at] = static_cast<std::uint8_t>((bytes[at] & ~(3 << shift)) | (code + 1) << shift);
}

}  // namespace

LaunchResult TernarizeCpu(const TernarizeArgs& args, const Stream&) {
  const ConstMatrix& w = args.w;
  const double total = LaneSum64(w.rows, [&](std::int64_t row) {
    return LaneSum64(w.cols, [&](std::int64_t k) { return static_cast<double>(std::fabs(Element(w, row, k))); });
  });
  const float mean = static_cast<float>(total / (static_cast<double>(w.rows) * static_cast<double>(w.cols)));
  const float scale = mean < kTernaryMinScale ? kTernaryMinScale : mean;  // keeps NaN
  const float inverse = 1.0f / scale;
  std::fill_n(args.scale, w.rows, scale);
  const std::int64_t row_bytes = TernaryRowBytes(w.cols);
  if (args.rows != nullptr) std::memset(args.rows, 0, static_cast<std::size_t>(w.rows * row_bytes));
  const auto tile_bytes = static_cast<std::size_t>(PackedTernaryBytes(w.rows, w.cols));
  if (args.tiles != nullptr) std::memset(args.tiles, 0x55, tile_bytes);
  for (std::int64_t row = 0; row < w.rows; ++row) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const float rounded = std::nearbyint(Element(w, row, k) * inverse);
      const int code = rounded > 0.0f ? 1 : rounded < 0.0f ? -1 : 0;
      if (args.rows != nullptr) PutCode(args.rows, row * row_bytes + k / 4, static_cast<int>(k % 4 * 2), code);
      const std::int64_t at = TernaryByte(TernaryPaddedK(w.cols), row, k);
      if (args.tiles != nullptr) PutCode(args.tiles, at, TernaryShift(k), code);
    }
  }
  return {};
}

}  // namespace nibble::kernels
