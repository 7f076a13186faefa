// The body of add.h for any Vec (vec16_*.h).
#pragma once
#include "kernels/ops/elementwise/add_launch.h"
#include "kernels/stream.h"
#include "kernels/vec_rows.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult AddVec(const AddArgs& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < args.x.cols; c += Vec::kLanes) {
        StoreLanes(LoadLanes<Vec>(args.x, r, c) + LoadLanes<Vec>(args.y, r, c), args.x, r, c);
      }
    }
  });
  return {};
}

}  // namespace nibble::kernels
