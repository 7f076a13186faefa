// The fast path of dequantize_int8 over any Vec.
#pragma once
#include "kernels/ops/quantize/dequantize_int8_launch.h"

namespace nibble::kernels {

template <typename Vec, typename T>
void DequantizeInt8Rows(const DequantizeInt8Args& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t cols = args.codes.cols;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int8_t* codes = args.codes.Row<std::int8_t>(row);
    T* out = args.out.Row<T>(row);
    const Vec scale = Vec::Set1(args.scale[row]);
    std::int64_t k = 0;
    for (; k + Vec::kLanes <= cols; k += Vec::kLanes) (Vec::Load(codes + k) * scale).Store(out + k);
    for (; k < cols; ++k) out[k] = RoundTo<T>(static_cast<float>(codes[k]) * args.scale[row]);
  }
}

template <typename Vec>
LaunchResult DequantizeInt8Vec(const DequantizeInt8Args& args, const Stream& stream) {
  stream.ParallelFor(args.codes.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    if (args.out.dtype == DType::kF32) {
      DequantizeInt8Rows<Vec, float>(args, begin, end);
    } else {
      DequantizeInt8Rows<Vec, BF16>(args, begin, end);
    }
  });
  return {};
}

}  // namespace nibble::kernels
