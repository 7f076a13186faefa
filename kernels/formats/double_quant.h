// Double quantization: the f32 absmax values of NF4 blocks as int8 in blocks, around their common mean.
//   z = absmax - offset, factor = 128 / max|z| of the block (1 where this is infinite, such as where max|z| is 0)
//   code = clamp(rne(z * factor), -128, 127), absmax' = code / factor + offset
// torchao's formula (nf4_tensor.py double_quantize_scalers) in f32, with a guard against an infinite factor
// (docs/numerics.md 4).
#pragma once
#include <cstdint>

namespace nibble::kernels {

inline constexpr std::int64_t kDoubleQuantBlock = 256;  // the default; any size that IsNf4Block (nf4.h) accepts

constexpr std::int64_t DoubleQuantBlocks(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

}  // namespace nibble::kernels
