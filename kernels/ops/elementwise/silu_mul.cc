#include "kernels/ops/elementwise/silu_mul.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/silu_mul_table.h"

namespace nibble::kernels {

absl::Status SiluMul(const SiluMulArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  const std::int64_t rows = args.y.rows;
  const std::int64_t cols = args.y.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("silu_mul", "y", args.y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("silu_mul", "gate", args.gate, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("silu_mul", "up", args.up, rows, cols, kFloats));
  return Launch(kSiluMulTable, args, stream);
}

}  // namespace nibble::kernels
