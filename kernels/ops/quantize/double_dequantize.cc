#include "kernels/ops/quantize/double_dequantize.h"

#include "kernels/check.h"
#include "kernels/ops/quantize/double_dequantize_table.h"

namespace nibble::kernels {

absl::Status DoubleDequantize(const DoubleDequantizeArgs& args, const Stream& stream) {
  constexpr const char* kOp = "double_dequantize";
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.n >= 0, kOp, "n >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckNf4Block(kOp, "block", args.block));
  if (args.n == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.codes != nullptr && args.factor != nullptr && args.absmax != nullptr, kOp,
                                     "codes, factor and absmax, got null"));
  return Launch(kDoubleDequantizeTable, args, stream);
}

}  // namespace nibble::kernels
