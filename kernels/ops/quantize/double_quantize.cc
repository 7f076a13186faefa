#include "kernels/ops/quantize/double_quantize.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/quantize/double_quantize_table.h"

namespace nibble::kernels {

absl::Status DoubleQuantize(const DoubleQuantizeArgs& args, const Stream& stream) {
  constexpr const char* kOp = "double_quantize";
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.n >= 0, kOp, "n >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckNf4Block(kOp, "block", args.block));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.offset != nullptr, kOp, "offset, got null"));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.n == 0 || (args.absmax != nullptr && args.codes != nullptr && args.factor != nullptr), kOp,
                "absmax, codes and factor, got null"));
  if (stream.device == DeviceKind::kCpu) {
    for (std::int64_t i = 0; i < args.n; ++i) {
      if (!std::isfinite(args.absmax[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": absmax[", i, "] is ", args.absmax[i], ", wanted a finite value"));
      }
    }
  }
  return Launch(kDoubleQuantizeTable, args, stream);
}

}  // namespace nibble::kernels
