// Argument checks of int8 rows, shared by the ops that write and read them.
#pragma once
#include "kernels/check.h"
#include "kernels/formats/int8.h"

namespace nibble::kernels {

inline absl::Status CheckQuantizedRows(const char* op, const char* field, const QuantizedRows& q, std::int64_t rows,
                                       std::int64_t cols, int bits = 8) {
  if (q.rows != rows || q.cols != cols || q.stride % 64 != 0 || q.stride < cols) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is [", q.rows, ", ", q.cols, "] with stride ",
                                                   q.stride, ", wanted [", rows, ", ", cols,
                                                   "] with a stride that is a multiple of 64"));
  }
  if (rows != 0 && ((bits == 16 ? q.wide_codes == nullptr : q.codes == nullptr) || q.scale == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " has no codes of ", bits, " bits or no scale"));
  }
  const bool lists = q.outlier_index != nullptr && q.outlier_value != nullptr;
  if (rows != 0 && q.num_outliers != nullptr && !lists) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " counts outliers but has no list of them"));
  }
  return absl::OkStatus();
}

inline absl::Status CheckMaxOutliers(const char* op, const QuantizedRows& q, int max_outliers) {
  if (max_outliers < 0 || max_outliers > kMaxOutliers) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": max_outliers is ", max_outliers, ", wanted 0 to ", kMaxOutliers));
  }
  return CheckThat(max_outliers == 0 || q.num_outliers != nullptr || q.rows == 0, op,
                   "outlier buffers where max_outliers is not 0");
}

inline absl::Status CheckQuantizeOptions(const char* op, const QuantizeOptions& how, int max_outliers) {
  if (how.bits != 4 && how.bits != 8 && how.bits != 16) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": bits is ", how.bits, ", wanted 4, 8 or 16"));
  }
  // Below, the reciprocal of the scale would be infinite.
  if (!(how.min_absmax >= 1e-30f)) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": min_absmax is ", how.min_absmax, ", wanted at least 1e-30"));
  }
  return CheckThat(!how.per_tensor || max_outliers == 0, op, "max_outliers 0 where one scale serves all rows");
}

}  // namespace nibble::kernels
