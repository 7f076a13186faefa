// Sixteen elements of a matrix row of run-time type (f32 or bf16) as a Vec, and back: for elementwise ops, where the
// branch on the type is cheap compared with the memory access.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/matrix.h"

namespace nibble::kernels {

// Elements [column, min(column + 16, cols)); missing lanes are 0.
template <typename Vec>
Vec LoadLanes(const ConstMatrix& m, std::int64_t row, std::int64_t column) {
  const std::int64_t offset = row * m.stride + column;
  const std::int64_t n = m.cols - column;
  if (m.dtype == DType::kF32) {
    const float* p = static_cast<const float*>(m.data) + offset;
    return n >= Vec::kLanes ? Vec::Load(p) : Vec::LoadPartial(p, static_cast<int>(n));
  }
  const BF16* p = static_cast<const BF16*>(m.data) + offset;
  return n >= Vec::kLanes ? Vec::Load(p) : Vec::LoadPartial(p, static_cast<int>(n));
}

// Rounds to m's type; lanes past the row's end are not written.
template <typename Vec>
void StoreLanes(Vec v, const Matrix& m, std::int64_t row, std::int64_t column) {
  const std::int64_t offset = row * m.stride + column;
  const std::int64_t n = m.cols - column;
  if (m.dtype == DType::kF32) {
    float* p = static_cast<float*>(m.data) + offset;
    if (n >= Vec::kLanes) {
      v.Store(p);
    } else {
      v.StorePartial(p, static_cast<int>(n));
    }
  } else {
    BF16* p = static_cast<BF16*>(m.data) + offset;
    if (n >= Vec::kLanes) {
      v.Store(p);
    } else {
      v.StorePartial(p, static_cast<int>(n));
    }
  }
}

}  // namespace nibble::kernels
