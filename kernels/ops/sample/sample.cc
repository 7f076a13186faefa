#include "kernels/ops/sample/sample.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/sample/sample_table.h"

namespace nibble::kernels {
namespace {

absl::Status CheckParams(const char* op, std::int64_t row, const SampleParams& p) {
  const auto refuse = [&](const char* field, auto got, const char* wanted) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " of row ", row, " is ", got, ", wanted ", wanted));
  };
  if (!(p.temperature >= 0.0f) || !std::isfinite(p.temperature)) {
    return refuse("temperature", p.temperature, "0 or above, finite");
  }
  if (p.top_k < 0) return refuse("top_k", p.top_k, "0 (off) or above");
  if (!(p.top_p >= 0.0f && p.top_p <= 1.0f)) return refuse("top_p", p.top_p, "0 to 1");
  if (!(p.min_p >= 0.0f && p.min_p <= 1.0f)) return refuse("min_p", p.min_p, "0 to 1");
  return absl::OkStatus();
}

}  // namespace

absl::Status Sample(const SampleArgs& args, const Stream& stream) {
  constexpr const char* kOp = "sample";
  const std::int64_t rows = args.logits.rows;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "logits", args.logits, rows, args.logits.cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.logits.cols > 0 && args.logits.cols <= INT32_MAX, kOp, "1 to 2^31 - 1 logits per row"));
  if (rows == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.params != nullptr && args.token != nullptr, kOp, "params and token"));
  for (std::int64_t t = 0; t < rows; ++t) NIBBLE_RETURN_IF_INVALID(CheckParams(kOp, t, args.params[t]));
  NIBBLE_RETURN_IF_INVALID(Launch(kSampleTable, args, stream));
  for (std::int64_t t = 0; t < rows; ++t) {
    if (args.token[t] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(kOp, ": logits of row ", t, " hold NaN or +inf, or no finite value; wanted a distribution"));
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::kernels
