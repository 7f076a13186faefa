// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/quantize/dequantize_int8_launch.h"

namespace nibble::kernels {

LaunchResult DequantizeInt8Cpu(const DequantizeInt8Args& args, const Stream& stream) {
  stream.ParallelFor(args.codes.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t k = 0; k < args.codes.cols; ++k) {
        SetElement(args.out, row, k, static_cast<float>(args.codes.Row<std::int8_t>(row)[k]) * args.scale[row]);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
