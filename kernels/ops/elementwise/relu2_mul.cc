#include "kernels/ops/elementwise/relu2_mul.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/relu2_mul_table.h"

namespace nibble::kernels {

absl::Status Relu2Mul(const Relu2MulArgs& args, const Stream& stream) {
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  const std::int64_t rows = args.y.rows;
  const std::int64_t cols = args.y.cols;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("relu2_mul", "y", args.y, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("relu2_mul", "gate", args.gate, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix("relu2_mul", "up", args.up, rows, cols, kFloats));
  return Launch(kRelu2MulTable, args, stream);
}

}  // namespace nibble::kernels
