// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/quantize/dequantize_ternary_launch.h"

namespace nibble::kernels {

LaunchResult DequantizeTernaryCpu(const DequantizeTernaryArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, kTernaryTileRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const float scale = args.w.scale == nullptr ? 1.0f : args.w.scale[n];
      for (std::int64_t k = 0; k < args.w.cols; ++k) {
        const int code = TernaryCode(args.w, n, k);
        if (args.out.dtype == DType::kI8) {  // only without a scale
          args.out.Row<std::int8_t>(n)[k] = static_cast<std::int8_t>(code);
        } else {
          SetElement(args.out, n, k, static_cast<float>(code) * scale);
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
