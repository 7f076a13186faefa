// Rows of a frozen weight with its adapter merged, in f32: what a conversion writes, and what DoRA takes norms of.
#pragma once
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/formats/int8.h"
#include "kernels/formats/nf4.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::model {

// A weight [N, K]: NF4, f32 or bf16 as stored, or int8 as its product reads it.
using FrozenWeight = std::variant<kernels::Nf4Weight, kernels::ConstMatrix, kernels::PackedInt8Weight>;

// Borrows the weight, B and the magnitudes. One thread.
class MergedRows {
 public:
  explicit MergedRows(FrozenWeight weight = kernels::ConstMatrix()) : weight_(weight) {}

  // a [r, K] and b [N, r] in f32; rows become W + (B A) * scaling.
  void SetAdapter(const kernels::ConstMatrix& a, const kernels::ConstMatrix& b, float scaling);
  // [N] f32, of DoRA: rows become DoraFactor(m, norm of the row) times the row.
  void SetMagnitudes(const float* magnitudes) { magnitudes_ = magnitudes; }

  // Rows [begin, end). Valid until the next call.
  absl::StatusOr<kernels::ConstMatrix> Rows(std::int64_t begin, std::int64_t end, const kernels::Stream& stream);
  // The norms [N] of the rows of W + (B A) * scaling: the root of the sum of squares in f64, rounded to f32.
  absl::Status Norms(float* norms, const kernels::Stream& stream);

 private:
  std::int64_t rows() const;
  std::int64_t cols() const;
  // Writes rows [begin, end) of W + (B A) * scaling to values_.
  absl::Status Merge(std::int64_t begin, std::int64_t end, const kernels::Stream& stream);
  absl::Status Widen(std::int64_t begin, std::int64_t end, const kernels::Stream& stream);
  float RowNorm(std::int64_t row_of_values) const;

  FrozenWeight weight_;
  std::vector<float> panels_;  // A^T [K, r] as matmul_dense reads it
  kernels::ConstMatrix b_;     // no data: no adapter
  float scaling_ = 0;
  const float* magnitudes_ = nullptr;
  std::vector<float> values_;
  std::vector<float> delta_;
};

}  // namespace nibble::model
