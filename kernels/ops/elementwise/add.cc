#include "kernels/ops/elementwise/add.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/add_table.h"

namespace nibble::kernels {

absl::Status Add(const AddArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("add", "x", args.x, args.x.rows, args.x.cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("add", "y", args.y, args.x.rows, args.x.cols, kFloats));
  return Launch(kAddTable, args, stream);
}

}  // namespace nibble::kernels
