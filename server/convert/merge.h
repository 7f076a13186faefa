// Reads any weight of an artifact as floats, a block of rows at a time. Included by server/convert/*.cc only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"
#include "server/model/artifact.h"
#include "server/model/merged_rows.h"
#include "server/model/tensor_table.h"

namespace nibble::convert {

// An element of an f32 or bf16 matrix.
inline float At(const kernels::ConstMatrix& m, std::int64_t r, std::int64_t c) {
  return m.dtype == kernels::DType::kF32 ? m.Row<float>(r)[c] : kernels::ToFloat(m.Row<kernels::BF16>(r)[c]);
}

// One weight [N, K] as f32 or bf16 rows: a float tensor as stored; NF4 or int8 dequantized to f32; a weight with an
// adapter merged in f32 (model/merged_rows.h); the adapter's copy of a weight that it saves.
class WeightReader {
 public:
  static absl::StatusOr<WeightReader> Open(const model::Artifact& source, const std::string& name,
                                           const kernels::Stream& stream);
  // Rows that the caller holds, which must outlive the reader: f32 or bf16.
  static WeightReader Of(const kernels::ConstMatrix& rows, const kernels::Stream& stream);
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  // Rows [begin, end). Valid until the next call.
  absl::StatusOr<kernels::ConstMatrix> Rows(std::int64_t begin, std::int64_t end);

 private:
  explicit WeightReader(const kernels::Stream& stream) : stream_(stream) {}
  absl::Status OpenNf4(const model::Artifact& source, const std::string& name);
  absl::Status OpenInt8(const model::Artifact& source, const std::string& name);
  absl::Status OpenAdapter(const model::Artifact& source, const std::string& name);

  kernels::Stream stream_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  model::TensorView view_;
  std::vector<float> absmax_;          // nf4: [N, blocks], double quantization undone
  std::vector<std::int8_t> tiles_;     // int8: codes and sums of rows as a product reads them
  std::vector<std::int32_t> row_sum_;  // [RoundUp(N, 16)]
  std::vector<float> lora_b_;          // lora: [N, r]
  std::vector<float> magnitudes_;
  bool has_adapter_ = false;
  model::MergedRows merged_;
};

// A weight is read in blocks of about 2^22 elements. Results do not depend on it.
inline std::int64_t RowsPerBlock(const WeightReader& weight) {
  constexpr std::int64_t kBlockElements = 1 << 22;
  return std::clamp<std::int64_t>(kBlockElements / weight.cols(), 1, weight.rows());
}

// The first row that holds a NaN or an infinity, or -1.
std::int64_t FirstRowNotFinite(const kernels::ConstMatrix& m, const kernels::Stream& stream);

}  // namespace nibble::convert
