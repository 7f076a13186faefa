// The int8 form of a float matrix as the right side of a product, in memory of its own.
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "kernels/formats/int8.h"
#include "kernels/stream.h"

namespace nibble::trainer {

struct PackedInt8 {
  torch::Tensor tiles;    // [PackedInt8Bytes(N, K)] i8
  torch::Tensor scale;    // [N] f32
  torch::Tensor row_sum;  // [RoundUp(N, 16)] i32
  std::int64_t rows = 0;  // N
  std::int64_t cols = 0;  // K

  static PackedInt8 Empty(std::int64_t rows, std::int64_t cols);
  // `reused` if it has that size, else Empty.
  static PackedInt8 Reuse(PackedInt8 reused, std::int64_t rows, std::int64_t cols);
  kernels::PackedInt8Weight view() const;
};

// Quantizes w [N, K], f32 or bf16. Overwrites and returns `reused` if it has that size: new memory for every weight at
// every step would leave holes in the heap. Throws the kernel's error, here and below.
PackedInt8 PackInt8Rows(const torch::Tensor& w, const kernels::QuantizeOptions& how, const kernels::Stream& stream,
                        PackedInt8 reused = {});
// Quantizes the transpose of x [K, N], in one pass. `reused` as above.
PackedInt8 PackInt8Transposed(const torch::Tensor& x, const kernels::QuantizeOptions& how,
                              const kernels::Stream& stream, PackedInt8 reused = {});

// Packs codes [N, K], row-major, into tiles and row_sum of the sizes above.
void PackInt8Codes(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::int8_t* tiles, std::int32_t* row_sum,
                   const kernels::Stream& stream);
// The codes as numbers: out [N, K] f32 or bf16, contiguous.
void UnpackInt8(const kernels::PackedInt8Weight& packed, const torch::Tensor& out, const kernels::Stream& stream);

// (g * scale) codes [T, K] f32, contiguous: the gradient of rows whose product with the weight codes * scale has the
// gradient g [T, N] f32. codes [N, K] f32 or bf16, the type of the product; scale [N].
torch::Tensor GradientThroughCodes(const torch::Tensor& g, const torch::Tensor& scale, const torch::Tensor& codes);

}  // namespace nibble::trainer
