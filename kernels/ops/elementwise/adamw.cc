#include "kernels/ops/elementwise/adamw.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/adamw_table.h"

namespace nibble::kernels {

absl::Status Adamw(const AdamwArgs& args, const Stream& stream) {
  const std::int64_t cols = args.value.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "value", args.value, 1, cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "grad", args.grad, 1, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "m", args.m, 1, cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "v", args.v, 1, cols, {DType::kF32}));
  return Launch(kAdamwTable, args, stream);
}

}  // namespace nibble::kernels
