#include "server/convert/ternary.h"

#include <cmath>

#include "kernels/formats/ternary.h"
#include "kernels/ops/quantize/ternarize.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using kernels::ConstMatrix;

// True when every value is -s, 0 or s; always false for a single element, which shows nothing. For masters the loop
// ends within the first elements.
template <typename T>
bool IsTernary(const ConstMatrix& weight) {
  float scale = 0;
  for (std::int64_t r = 0; r < weight.rows; ++r) {
    for (std::int64_t c = 0; c < weight.cols; ++c) {
      const float magnitude = std::fabs(static_cast<float>(kernels::ToFloat(weight.Row<T>(r)[c])));
      if (magnitude == 0.0f) continue;
      if (scale == 0.0f) scale = magnitude;
      if (magnitude != scale) return false;
    }
  }
  return weight.rows * weight.cols > 1;
}

}  // namespace

absl::StatusOr<TernaryWeight> TernarizeOnce(const std::string& name, const ConstMatrix& weight,
                                            kernels::RowScaling scaling, const kernels::Stream& stream) {
  if (weight.dtype == kernels::DType::kF32 ? IsTernary<float>(weight) : IsTernary<kernels::BF16>(weight)) {
    return base::WithReason(
        absl::FailedPreconditionError(StrCat(name,
                                             ": every value is -s, 0 or s, so it is already ternary; codes are made "
                                             "only once, from master weights")),
        "ALREADY_TERNARY", {{"tensor", name}});
  }
  TernaryWeight out;
  out.rows.resize(static_cast<std::size_t>(weight.rows * kernels::TernaryRowBytes(weight.cols)));
  std::vector<float> scale(static_cast<std::size_t>(weight.rows));
  NIBBLE_RETURN_IF_ERROR(kernels::Ternarize({.w = weight, .scale = scale.data(), .rows = out.rows.data()}, stream));
  out.scale = scaling == kernels::RowScaling::kReciprocal ? kernels::ReciprocalScale(scale[0]) : scale[0];
  if (!std::isfinite(out.scale)) return absl::InvalidArgumentError(StrCat(name, ": its values are not all finite"));
  return out;
}

}  // namespace nibble::convert
