// Plain loops: the reference that the fast paths must equal.
#include "kernels/element.h"
#include "kernels/ops/elementwise/add_launch.h"

namespace nibble::kernels {

LaunchResult AddCpu(const AddArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.x.cols; ++c) {
        SetElement(args.x, r, c, Element(args.x, r, c) + Element(args.y, r, c));
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
