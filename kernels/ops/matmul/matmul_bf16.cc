#include "kernels/ops/matmul/matmul_bf16.h"

#include "kernels/check.h"
#include "kernels/ops/matmul/matmul_bf16_table.h"

namespace nibble::kernels {

absl::Status MatmulBf16(const MatmulBf16Args& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_bf16";
  const std::int64_t rows = args.x.rows;
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows >= 0 && args.x.cols >= 0 && args.w.rows >= 0, kOp, "sizes of x and w >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, rows, args.x.cols, {DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "w", args.w, args.w.rows, args.x.cols, {DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, rows, args.w.rows, {DType::kF32, DType::kBF16}));
  if (rows == 0 || args.w.rows == 0) return absl::OkStatus();
  return Launch(kMatmulBf16Table, args, stream);
}

bool HasFastMatmulBf16(const Stream& stream) {
  return stream.device == DeviceKind::kCpu && stream.isa >= Isa::kAvx512 && HasBf16Dot();
}

}  // namespace nibble::kernels
