#include "kernels/ops/elementwise/adamw.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/adamw_table.h"

namespace nibble::kernels {

absl::Status Adamw(const AdamwArgs& args, const Stream& stream) {
  const std::int64_t rows = args.value.rows, cols = args.value.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "value", args.value, rows, cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "grad", args.grad, rows, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "m", args.m, rows, cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("adamw", "v", args.v, rows, cols, {DType::kF32}));
  return Launch(kAdamwTable, args, stream);
}

}  // namespace nibble::kernels
