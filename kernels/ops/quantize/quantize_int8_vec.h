// The fast path of quantize_int8 for any Vec (vec16_*.h).
#pragma once
#include "kernels/ops/quantize/int8_rows_vec.h"
#include "kernels/ops/quantize/quantize_int8_launch.h"

namespace nibble::kernels {

template <typename Vec>
LaunchResult QuantizeInt8Vec(const QuantizeInt8Args& args, const Stream& stream) {
  const auto quantize = [&]<typename T>(T) {
    QuantizeAllRows<Vec>([&](std::int64_t row) { return RowSource<Vec, T>{args.x.Row<T>(row)}; }, args.max_outliers,
                         args.how, args.out, stream);
  };
  args.x.dtype == DType::kF32 ? quantize(float{}) : quantize(BF16{});
  return {};
}

}  // namespace nibble::kernels
