// The fast path of quantize_int8 over any Vec.
#pragma once
#include "kernels/ops/int8_rows_vec.h"
#include "kernels/ops/quantize_int8_launch.h"

namespace nibble::kernels {

template <typename Vec, typename T>
void QuantizeInt8Rows(const QuantizeInt8Args& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    QuantizeRow<Vec>(RowSource<Vec, T>{args.x.Row<T>(row)}, args.x.cols, args.max_outliers, args.out, row);
  }
}

template <typename Vec>
LaunchResult QuantizeInt8Vec(const QuantizeInt8Args& args, const Stream& stream) {
  stream.ParallelFor(args.x.rows, RowGrain(args.x.cols), [&](std::int64_t begin, std::int64_t end) {
    if (args.x.dtype == DType::kF32) {
      QuantizeInt8Rows<Vec, float>(args, begin, end);
    } else {
      QuantizeInt8Rows<Vec, BF16>(args, begin, end);
    }
  });
  return {};
}

}  // namespace nibble::kernels
