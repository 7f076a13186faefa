#include "kernels/ops/quantize/quantize_int8_backward.h"

#include "kernels/formats/int8_check.h"
#include "kernels/ops/quantize/quantize_int8_backward_table.h"

namespace nibble::kernels {

absl::Status QuantizeInt8Backward(const QuantizeInt8BackwardArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  constexpr const char* kOp = "quantize_int8_backward";
  const std::int64_t rows = args.x.rows;
  const std::int64_t cols = args.x.cols;
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows >= 0 && cols >= 1, kOp, "x.rows >= 0 and x.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_y", args.grad_y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_x", args.grad_x, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizeOptions(kOp, args.how, 0));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizedRows(kOp, "q", args.q, rows, cols, args.how.bits));
  if (rows == 0) return absl::OkStatus();
  return Launch(kQuantizeInt8BackwardTable, args, stream);
}

}  // namespace nibble::kernels
