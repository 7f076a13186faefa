// Plain loops: the reference that the fast paths must equal.
#include "kernels/ops/quantize/dequantize_ternary_table.h"

namespace nibble::kernels {

LaunchResult DequantizeTernaryCpu(const DequantizeTernaryArgs& args, const Stream& stream) {
  stream.ParallelFor(args.w.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      for (std::int64_t k = 0; k < args.w.cols; ++k) {
        const int code = TernaryCode(args.w, n, k);
        const float value =
            args.w.scale == nullptr ? static_cast<float>(code) : static_cast<float>(code) * args.w.scale[n];
        switch (args.out.dtype) {
          case DType::kI8: args.out.Row<std::int8_t>(n)[k] = static_cast<std::int8_t>(code); break;
          case DType::kBF16: args.out.Row<BF16>(n)[k] = ToBF16(value); break;
          default: args.out.Row<float>(n)[k] = value; break;
        }
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
