#include "kernels/ops/elementwise/gated_mul_backward.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/gated_mul_backward_table.h"

namespace nibble::kernels {

absl::Status GatedMulBackward(const GatedMulBackwardArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  constexpr const char* kOp = "gated_mul_backward";
  const std::int64_t rows = args.gate.rows;
  const std::int64_t cols = args.gate.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "gate", args.gate, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "up", args.up, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_y", args.grad_y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_gate", args.grad_gate, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_up", args.grad_up, rows, cols, kFloats));
  return Launch(kGatedMulBackwardTable, args, stream);
}

}  // namespace nibble::kernels
