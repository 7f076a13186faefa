// Argument checks of quantized rows (formats/int8.h), shared by the ops that write and read them.
#pragma once
#include "kernels/check.h"
#include "kernels/formats/int8.h"

namespace nibble::kernels {

// bits: 16 needs wide_codes, 4 and 8 need codes.
inline absl::Status CheckQuantizedRows(const char* op, const char* field, const QuantizedRows& q, std::int64_t rows,
                                       std::int64_t cols, int bits = 8) {
  if (q.rows != rows || q.cols != cols || q.stride % 64 != 0 || q.stride < cols) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is [", q.rows, ", ", q.cols, "] with stride ",
                                                   q.stride, ", wanted [", rows, ", ", cols,
                                                   "] with a stride of at least ", cols, ", a multiple of 64"));
  }
  if (rows == 0) return absl::OkStatus();
  const bool has_codes = bits == 16 ? q.wide_codes != nullptr : q.codes != nullptr;
  if (!has_codes || q.scale == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " lacks ", bits, "-bit codes or a scale"));
  }
  if (q.num_outliers != nullptr && (q.outlier_index == nullptr || q.outlier_value == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": ", field, " has num_outliers but lacks outlier_index or outlier_value"));
  }
  return absl::OkStatus();
}

// For ops that write outliers: q needs buffers for them if max_outliers > 0.
inline absl::Status CheckMaxOutliers(const char* op, const QuantizedRows& q, int max_outliers) {
  if (max_outliers < 0 || max_outliers > kMaxOutliers) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": max_outliers is ", max_outliers, ", wanted 0 to ", kMaxOutliers));
  }
  return CheckThat(max_outliers == 0 || q.num_outliers != nullptr || q.rows == 0, op,
                   "outlier buffers when max_outliers > 0");
}

inline absl::Status CheckQuantizeOptions(const char* op, const QuantizeOptions& how, int max_outliers) {
  if (how.bits != 4 && how.bits != 8 && how.bits != 16) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": bits is ", how.bits, ", wanted 4, 8 or 16"));
  }
  // A smaller min_absmax could make the reciprocal of the scale infinite.
  if (!(how.min_absmax >= 1e-30f)) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": min_absmax is ", how.min_absmax, ", wanted at least 1e-30"));
  }
  return CheckThat(!how.per_tensor || max_outliers == 0, op, "max_outliers 0 when per_tensor is set");
}

}  // namespace nibble::kernels
