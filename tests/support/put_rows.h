// Writes the output that a test expects of a kernel.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"
#include "tests/support/random.h"

namespace nibble::support {

// values [rows, cols], rounded to `dtype` (f32 or bf16), to rows that are `stride` elements apart. The gaps between
// rows keep their bytes.
inline void PutRows(const std::vector<float>& values, kernels::DType dtype, std::int64_t rows, std::int64_t cols,
                    std::int64_t stride, std::uint8_t* out) {
  const std::vector<std::uint8_t> bytes = ToBytes(values, dtype);
  const std::int64_t element = kernels::SizeOf(dtype);
  if (cols == 0) return;  // memcpy must not get the null pointer of an empty vector
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * stride * element, bytes.data() + r * cols * element,
                static_cast<std::size_t>(cols * element));
  }
}

}  // namespace nibble::support
