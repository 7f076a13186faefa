// Borrowed row-major matrices: the arguments and results of ops. absl-free (nvcc reads it).
#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace nibble::kernels {

// rows x cols elements of dtype; row r begins at data + r * stride elements. A vector is one row.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;  // elements, >= cols

  template <typename T>
  const T* Row(std::int64_t r) const {
    return static_cast<const T*>(data) + r * stride;
  }
};

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  template <typename T>
  T* Row(std::int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
  operator ConstMatrix() const { return {data, dtype, rows, cols, stride}; }  // NOLINT: a view of a view
};

inline Matrix MakeMatrix(void* data, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {data, dtype, rows, cols, cols};
}
inline ConstMatrix MakeConstMatrix(const void* data, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

// Columns [first, first + count).
inline ConstMatrix Columns(const ConstMatrix& m, std::int64_t first, std::int64_t count) {
  return {static_cast<const char*>(m.data) + first * SizeOf(m.dtype), m.dtype, m.rows, count, m.stride};
}
inline Matrix Columns(const Matrix& m, std::int64_t first, std::int64_t count) {
  return {static_cast<char*>(m.data) + first * SizeOf(m.dtype), m.dtype, m.rows, count, m.stride};
}

}  // namespace nibble::kernels
