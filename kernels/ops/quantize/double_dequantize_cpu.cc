// Plain loops: the reference that the fast paths must equal.
#include "kernels/ops/quantize/double_dequantize_launch.h"

namespace nibble::kernels {

LaunchResult DoubleDequantizeCpu(const DoubleDequantizeArgs& args, const Stream& stream) {
  stream.ParallelFor(args.n, args.block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      args.absmax[i] = static_cast<float>(args.codes[i]) / args.factor[i / args.block] + args.offset;
    }
  });
  return {};
}

}  // namespace nibble::kernels
