// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/elementwise/adamw_launch.h"

namespace nibble::kernels {

LaunchResult AdamwCpu(const AdamwArgs& args, const Stream& stream) {
  stream.ParallelFor(args.value.cols, kAdamwBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      AdamwElement(args.factors, Element(args.grad, 0, i), args.m.Row<float>(0)[i], args.v.Row<float>(0)[i],
                   args.value.Row<float>(0)[i]);
    }
  });
  return {};
}

}  // namespace nibble::kernels
