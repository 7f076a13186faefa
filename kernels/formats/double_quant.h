// Double quantization: the f32 absmax values of NF4 blocks as int8 in blocks of 256, around their common mean.
//   z = absmax - offset, factor = 128 / max|z| of the block (1 where this is infinite, such as where max|z| is 0)
//   code = clamp(rne(z * factor), -128, 127), absmax' = code / factor + offset
// torchao's formula (nf4_tensor.py double_quantize_scalers) in f32, with a guard against an infinite factor
// (docs/numerics.md 4).
#pragma once
#include <cstdint>

namespace nibble::kernels {

inline constexpr std::int64_t kDoubleQuantBlock = 256;

constexpr std::int64_t DoubleQuantBlocks(std::int64_t n) { return (n + kDoubleQuantBlock - 1) / kDoubleQuantBlock; }

}  // namespace nibble::kernels
