#include "kernels/ops/quantize/quantize_int8_transposed.h"

#include "kernels/formats/int8_check.h"
#include "kernels/ops/quantize/quantize_int8_transposed_table.h"

namespace nibble::kernels {

absl::Status QuantizeInt8Transposed(const QuantizeInt8TransposedArgs& args, const Stream& stream) {
  constexpr const char* kOp = "quantize_int8_transposed";
  const std::int64_t rows = args.x.rows;
  const std::int64_t cols = args.x.cols;
  if (rows < 1 || rows > kInt8MaxCols || cols < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": x is [", rows, ", ", cols, "], wanted 1 to ", kInt8MaxCols, " rows and cols >= 0"));
  }
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, rows, cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizeOptions(kOp, args.how, 0));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.how.bits == 8, kOp, "8 bits"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.how.scaling == RowScaling::kNative, kOp, "native scaling"));
  if (cols == 0) return absl::OkStatus();
  const bool packed = args.tiles != nullptr && args.row_sum != nullptr;
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.scale != nullptr, kOp, "scale not null"));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(packed != (args.codes != nullptr), kOp, "either codes, or tiles and row_sum, not null"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(packed || (args.stride >= rows && args.stride % 64 == 0), kOp,
                                     "a stride of at least x.rows, a multiple of 64"));
  return Launch(kQuantizeInt8TransposedTable, args, stream);
}

}  // namespace nibble::kernels
