// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/elementwise/adamw_launch.h"

namespace nibble::kernels {

LaunchResult AdamwCpu(const AdamwArgs& args, const Stream& stream) {
  stream.ParallelFor(args.value.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.value.cols; ++c) {
        AdamwElement(args.factors, Element(args.grad, r, c), args.m.Row<float>(r)[c], args.v.Row<float>(r)[c],
                     args.value.Row<float>(r)[c]);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
