#include "server/convert/nf4_codes.h"

#include <algorithm>

#include "kernels/formats/double_quant.h"
#include "kernels/ops/quantize/double_dequantize.h"
#include "kernels/ops/quantize/double_quantize.h"
#include "kernels/ops/quantize/quantize_nf4.h"
#include "server/base/status_macros.h"

namespace nibble::convert {
namespace {

// Makes the scales' codes, and replaces the scales with the values of the codes, which serving uses.
absl::Status CodeScales(Nf4Codes& made, const kernels::Stream& stream) {
  const auto n = static_cast<std::int64_t>(made.absmax.size());
  made.absmax_codes.resize(made.absmax.size());
  made.factor.resize(static_cast<std::size_t>(kernels::DoubleQuantBlocks(n, made.form.scaler_block)));
  made.offset.resize(1);
  NIBBLE_RETURN_IF_ERROR(kernels::DoubleQuantize({.absmax = made.absmax.data(),
                                                  .n = n,
                                                  .codes = made.absmax_codes.data(),
                                                  .factor = made.factor.data(),
                                                  .offset = made.offset.data(),
                                                  .block = made.form.scaler_block},
                                                 stream));
  return kernels::DoubleDequantize({.codes = made.absmax_codes.data(),
                                    .factor = made.factor.data(),
                                    .offset = made.offset[0],
                                    .n = n,
                                    .absmax = made.absmax.data(),
                                    .block = made.form.scaler_block},
                                   stream);
}

}  // namespace

absl::StatusOr<Nf4Codes> MakeNf4Codes(WeightReader& weight, const model::Nf4Options& form,
                                      const kernels::Stream& stream, const base::Cancelled& cancelled) {
  Nf4Codes made;
  made.rows = weight.rows();
  made.cols = weight.cols();
  made.form = form;
  const std::int64_t row_blocks = kernels::Nf4RowBlocks(made.cols, form.block);
  const std::int64_t row_bytes = kernels::Nf4RowBytes(made.cols);
  made.codes.resize(static_cast<std::size_t>(made.rows * row_bytes));
  made.absmax.resize(static_cast<std::size_t>(made.rows * row_blocks));
  const std::int64_t block = RowsPerBlock(weight);
  for (std::int64_t begin = 0; begin < made.rows; begin += block) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    kernels::QuantizeNf4Args args;
    NIBBLE_ASSIGN_OR_RETURN(args.x, weight.Rows(begin, std::min(made.rows, begin + block)));
    args.codes = made.codes.data() + begin * row_bytes;
    args.absmax = made.absmax.data() + begin * row_blocks;
    args.block = form.block;
    NIBBLE_RETURN_IF_ERROR(kernels::QuantizeNf4(args, stream));
  }
  if (form.double_quant) NIBBLE_RETURN_IF_ERROR(CodeScales(made, stream));
  return made;
}

}  // namespace nibble::convert
