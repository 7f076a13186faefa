#include "kernels/ops/elementwise/gated_mul.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/gated_mul_table.h"

namespace nibble::kernels {

absl::Status GatedMul(const GatedMulArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  constexpr const char* kOp = "gated_mul";
  const std::int64_t rows = args.y.rows;
  const std::int64_t cols = args.y.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "gate", args.gate, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "up", args.up, rows, cols, kFloats));
  return Launch(kGatedMulTable, args, stream);
}

}  // namespace nibble::kernels
