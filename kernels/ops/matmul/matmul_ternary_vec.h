// Shared by the fast paths of matmul_ternary: the sums of the activations, which turn products with stored codes 0, 1,
// 2 into products with -1, 0, 1.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/ops/matmul/matmul_ternary_launch.h"
#include "kernels/ops/matmul/matmul_tiles_vec.h"
#include "kernels/ops/quantize/int8_rows_vec.h"

namespace nibble::kernels {

// sum over k of x[row, k]; its magnitude is below 2^31. Path gives each instruction set its own copy.
template <typename Path, typename T>
inline void SumRows(const T* codes, const QuantizedRows& x, const Stream& stream, std::int32_t* sums) {
  stream.ParallelFor(x.rows, RowGrain(x.cols) * 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < x.cols; ++k) sum += codes[row * x.stride + k];
      sums[row] = sum;
    }
  });
}

// Path<T> computes with codes of type T (i8 or i16) and is constructed from the row sums.
template <template <typename> typename Path>
LaunchResult MatmulTernaryVec(const MatmulTernaryArgs& args, const Stream& stream) {
  std::vector<std::int32_t> sums(static_cast<std::size_t>(args.x.rows));
  if (args.x.wide_codes != nullptr) {
    SumRows<Path<std::int16_t>>(args.x.wide_codes, args.x, stream, sums.data());
    return MatmulTiles(Path<std::int16_t>{sums.data()}, args, stream);
  }
  SumRows<Path<std::int8_t>>(args.x.codes, args.x, stream, sums.data());
  return MatmulTiles(Path<std::int8_t>{sums.data()}, args, stream);
}

}  // namespace nibble::kernels
