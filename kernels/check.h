// Argument checks at the start of every op's foo.cc. A message names the op and what is wrong or wanted.
#pragma once
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/formats/nf4.h"
#include "kernels/matrix.h"

#define NIBBLE_RETURN_IF_INVALID(expr)                  \
  do {                                                  \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                   \
    }                                                   \
  } while (false)

namespace nibble::kernels {

inline absl::Status CheckMatrix(const char* op, const char* field, const ConstMatrix& m, std::int64_t rows,
                                std::int64_t cols, std::initializer_list<DType> dtypes) {
  bool dtype_ok = false;
  for (const DType dtype : dtypes) dtype_ok |= m.dtype == dtype;
  if (!dtype_ok) return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " has dtype ", Name(m.dtype)));
  if (m.rows != rows || m.cols != cols || m.stride < m.cols) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is [", m.rows, ", ", m.cols, "] with stride ",
                                                   m.stride, ", wanted [", rows, ", ", cols, "]"));
  }
  if (m.data == nullptr && rows * cols != 0) {
    return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is null"));
  }
  return absl::OkStatus();
}

inline absl::Status CheckThat(bool condition, const char* op, const char* wanted) {
  if (condition) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": wanted ", wanted));
}

inline absl::Status CheckNf4Block(const char* op, const char* field, std::int64_t block) {
  if (IsNf4Block(block)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is ", block, ", wanted a power of two from ",
                                                 kNf4SmallestBlock, " to ", kNf4LargestBlock));
}

}  // namespace nibble::kernels
