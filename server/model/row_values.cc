#include "server/model/row_values.h"

#include <numeric>
#include <vector>

#include "kernels/ops/elementwise/embedding.h"

namespace nibble::model {
namespace {

constexpr std::int64_t kRowGrain = 16;  // minimum rows per thread

template <typename Code>
void ScaleCodes(const Code* codes, float scale, std::int64_t cols, float* out) {
  for (std::int64_t k = 0; k < cols; ++k) out[k] = static_cast<float>(codes[k]) * scale;
}

}  // namespace

void RowValues(const kernels::QuantizedRows& rows, const kernels::Matrix& out, const kernels::Stream& stream) {
  stream.ParallelFor(rows.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* row = out.Row<float>(r);
      if (rows.wide_codes != nullptr) {
        ScaleCodes(rows.wide_codes + r * rows.stride, rows.scale[r], rows.cols, row);
      } else {
        ScaleCodes(rows.codes + r * rows.stride, rows.scale[r], rows.cols, row);
      }
      if (rows.num_outliers == nullptr) continue;
      for (std::int64_t i = r * kernels::kMaxOutliers; i < r * kernels::kMaxOutliers + rows.num_outliers[r]; ++i) {
        row[rows.outlier_index[i]] = rows.outlier_value[i];
      }
    }
  });
}

absl::Status WeightValues(const kernels::PackedInt8Weight& weight, std::int64_t begin, const kernels::Matrix& out,
                          const kernels::Stream& stream) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(out.rows));
  std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(begin));
  return kernels::Embedding({.ids = ids.data(), .num_ids = out.rows, .table = {}, .packed = weight, .out = out},
                            stream);
}

}  // namespace nibble::model
