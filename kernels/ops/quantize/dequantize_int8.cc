#include "kernels/ops/quantize/dequantize_int8.h"

#include "kernels/check.h"
#include "kernels/ops/quantize/dequantize_int8_table.h"

namespace nibble::kernels {

absl::Status DequantizeInt8(const DequantizeInt8Args& args, const Stream& stream) {
  constexpr const char* kOp = "dequantize_int8";
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.codes.rows >= 0 && args.codes.cols >= 0, kOp, "codes.rows and codes.cols >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "codes", args.codes, args.codes.rows, args.codes.cols, {DType::kI8}));
  NIBBLE_RETURN_IF_INVALID(
      CheckMatrix(kOp, "out", args.out, args.codes.rows, args.codes.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.codes.rows == 0 || args.scale != nullptr, kOp, "a scale for each row"));
  return Launch(kDequantizeInt8Table, args, stream);
}

}  // namespace nibble::kernels
