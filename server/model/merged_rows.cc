#include "server/model/merged_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/formats/dense.h"
#include "kernels/lane_sum.h"
#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/quantize/dequantize_nf4.h"
#include "server/base/status_macros.h"
#include "server/model/dora.h"
#include "server/model/row_values.h"

namespace nibble::model {

using kernels::ConstMatrix;
using kernels::DType;
using kernels::Nf4Weight;

namespace {

constexpr std::int64_t kRowGrain = 16;    // minimum rows per thread
constexpr std::int64_t kBlockRows = 128;  // that Norms merges at a time

}  // namespace

std::int64_t MergedRows::rows() const {
  return std::visit([](const auto& weight) { return weight.rows; }, weight_);
}
std::int64_t MergedRows::cols() const {
  return std::visit([](const auto& weight) { return weight.cols; }, weight_);
}

void MergedRows::SetAdapter(const ConstMatrix& a, const ConstMatrix& b, float scaling) {
  b_ = b;
  scaling_ = scaling;
  std::vector<float> transposed(static_cast<std::size_t>(a.rows * a.cols));
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t k = 0; k < a.cols; ++k) transposed[static_cast<std::size_t>(k * a.rows + r)] = a.Row<float>(r)[k];
  }
  panels_.resize(static_cast<std::size_t>(kernels::PackedDenseElements(a.cols, a.rows)));
  kernels::PackDenseWeight(transposed.data(), DType::kF32, a.cols, a.rows, panels_.data());
}

absl::StatusOr<ConstMatrix> MergedRows::Rows(std::int64_t begin, std::int64_t end, const kernels::Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(Merge(begin, end, stream));
  if (magnitudes_ != nullptr) {
    stream.ParallelFor(end - begin, kRowGrain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) {
        const float factor = DoraFactor(magnitudes_[begin + r], RowNorm(r));
        float* row = values_.data() + r * cols();
        for (std::int64_t c = 0; c < cols(); ++c) row[c] *= factor;
      }
    });
  }
  return kernels::MakeConstMatrix(values_.data(), DType::kF32, end - begin, cols());
}

absl::Status MergedRows::Norms(float* norms, const kernels::Stream& stream) {
  for (std::int64_t begin = 0; begin < rows(); begin += kBlockRows) {
    const std::int64_t end = std::min(begin + kBlockRows, rows());
    NIBBLE_RETURN_IF_ERROR(Merge(begin, end, stream));
    stream.ParallelFor(end - begin, kRowGrain, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t r = from; r < to; ++r) norms[begin + r] = RowNorm(r);
    });
  }
  return absl::OkStatus();
}

// Per element: one multiply-add chain over the rank, then a multiplication, then an addition.
absl::Status MergedRows::Merge(std::int64_t begin, std::int64_t end, const kernels::Stream& stream) {
  NIBBLE_RETURN_IF_ERROR(Widen(begin, end, stream));
  if (b_.data == nullptr) return absl::OkStatus();
  const std::int64_t count = end - begin;
  delta_.resize(values_.size());
  NIBBLE_RETURN_IF_ERROR(
      kernels::MatmulDense({.x = kernels::MakeConstMatrix(b_.Row<float>(begin), DType::kF32, count, b_.cols),
                            .w = {.panels = panels_.data(), .dtype = DType::kF32, .rows = cols(), .cols = b_.cols},
                            .y = kernels::MakeMatrix(delta_.data(), DType::kF32, count, cols())},
                           stream));
  stream.ParallelFor(count, kRowGrain, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from * cols(); i < to * cols(); ++i) {
      values_[static_cast<std::size_t>(i)] += delta_[static_cast<std::size_t>(i)] * scaling_;
    }
  });
  return absl::OkStatus();
}

absl::Status MergedRows::Widen(std::int64_t begin, std::int64_t end, const kernels::Stream& stream) {
  const std::int64_t count = end - begin;
  values_.resize(static_cast<std::size_t>(count * cols()));
  if (const auto* nf4 = std::get_if<Nf4Weight>(&weight_)) {
    Nf4Weight part = *nf4;
    part.codes += begin * kernels::Nf4RowBytes(cols());
    part.absmax += begin * kernels::Nf4RowBlocks(cols(), part.block);
    part.rows = count;
    return kernels::DequantizeNf4({.w = part, .out = kernels::MakeMatrix(values_.data(), DType::kF32, count, cols())},
                                  stream);
  }
  if (const auto* int8 = std::get_if<kernels::PackedInt8Weight>(&weight_)) {
    return WeightValues(*int8, begin, kernels::MakeMatrix(values_.data(), DType::kF32, count, cols()), stream);
  }
  const auto& stored = std::get<ConstMatrix>(weight_);
  stream.ParallelFor(count, kRowGrain, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t r = from; r < to; ++r) {
      float* row = values_.data() + r * cols();
      if (stored.dtype == DType::kF32) {
        std::copy_n(stored.Row<float>(begin + r), cols(), row);
      } else {
        std::transform(stored.Row<kernels::BF16>(begin + r), stored.Row<kernels::BF16>(begin + r) + cols(), row,
                       [](kernels::BF16 value) { return kernels::ToFloat(value); });
      }
    }
  });
  return absl::OkStatus();
}

float MergedRows::RowNorm(std::int64_t row_of_values) const {
  const float* row = values_.data() + row_of_values * cols();
  return static_cast<float>(std::sqrt(kernels::LaneSum64(cols(), [row](std::int64_t c) {
    const auto value = static_cast<double>(row[c]);
    return value * value;
  })));
}

}  // namespace nibble::model
