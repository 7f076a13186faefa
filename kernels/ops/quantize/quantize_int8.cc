#include "kernels/ops/quantize/quantize_int8.h"

#include "kernels/formats/int8_check.h"
#include "kernels/ops/quantize/quantize_int8_table.h"

namespace nibble::kernels {

namespace {

absl::Status Quantize(const KernelTable<QuantizeInt8Kernel>& table, const QuantizeInt8Args& args,
                      const Stream& stream) {
  constexpr const char* kOp = "quantize_int8";
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.rows >= 0 && args.x.cols >= 1, kOp, "x.rows >= 0 and x.cols >= 1"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizeOptions(kOp, args.how, args.max_outliers));
  NIBBLE_RETURN_IF_INVALID(CheckQuantizedRows(kOp, "out", args.out, args.x.rows, args.x.cols, args.how.bits));
  NIBBLE_RETURN_IF_INVALID(CheckMaxOutliers(kOp, args.out, args.max_outliers));
  return Launch(table, args, stream);
}

}  // namespace

absl::Status QuantizeInt8(const QuantizeInt8Args& args, const Stream& stream) {
  return Quantize(kQuantizeInt8Table, args, stream);
}

absl::Status QuantizeActivations(const QuantizeInt8Args& args, const Stream& stream) {
  static constexpr KernelTable<QuantizeInt8Kernel> kTable = {"quantize_activations", kQuantizeInt8Table.plain,
                                                             kQuantizeInt8Table.avx2, kQuantizeInt8Table.avx512,
                                                             kQuantizeInt8Table.cuda};
  QuantizeInt8Args named = args;
  named.counted_as = kTable.name;
  return Quantize(kTable, named, stream);
}

}  // namespace nibble::kernels
