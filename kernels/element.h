// One element of a matrix row of run-time type (f32 or bf16) as a float, and back: for the plain loops. The functions
// are in an anonymous namespace, so that each file has its own copy and the linker cannot give the plain path AVX code.
#pragma once
#include <cstdint>

#include "kernels/matrix.h"

namespace nibble::kernels {
namespace {

inline float Element(const ConstMatrix& m, std::int64_t row, std::int64_t column) {
  return m.dtype == DType::kF32 ? m.Row<float>(row)[column] : ToFloat(m.Row<BF16>(row)[column]);
}

// Rounds to m's type.
inline void SetElement(const Matrix& m, std::int64_t row, std::int64_t column, float value) {
  if (m.dtype == DType::kF32) {
    m.Row<float>(row)[column] = value;
  } else {
    m.Row<BF16>(row)[column] = RoundTo<BF16>(value);
  }
}

}  // namespace
}  // namespace nibble::kernels
