#include "server/trainer/packed_int8.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "kernels/ops/quantize/quantize_int8_transposed.h"
#include "server/trainer/autograd.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

std::int64_t NumTiles(std::int64_t n) { return kernels::RoundUp(n, kernels::kInt8TileRows) / kernels::kInt8TileRows; }

}  // namespace

PackedInt8 PackedInt8::Empty(std::int64_t rows, std::int64_t cols) {
  return {torch::empty({kernels::PackedInt8Bytes(rows, cols)}, torch::kInt8), torch::empty({rows}, torch::kFloat32),
          torch::empty({kernels::RoundUp(rows, kernels::kInt8TileRows)}, torch::kInt32), rows, cols};
}

PackedInt8 PackedInt8::Reuse(PackedInt8 reused, std::int64_t rows, std::int64_t cols) {
  if (reused.tiles.defined() && reused.rows == rows && reused.cols == cols) return reused;
  return Empty(rows, cols);
}

kernels::PackedInt8Weight PackedInt8::view() const {
  return {tiles.data_ptr<std::int8_t>(), scale.data_ptr<float>(), row_sum.data_ptr<std::int32_t>(), rows, cols,
          kernels::Int8PaddedK(cols)};
}

PackedInt8 PackInt8Rows(const Tensor& w, const kernels::QuantizeOptions& how, const kernels::Stream& stream,
                        PackedInt8 reused) {
  const std::int64_t n = w.size(0);
  const std::int64_t k = w.size(1);
  const std::int64_t stride = kernels::Int8PaddedK(k);
  PackedInt8 packed = PackedInt8::Reuse(std::move(reused), n, k);
  const Tensor padded = torch::empty({n, stride}, torch::kInt8);
  kernels::QuantizedRows rows;
  rows.codes = padded.data_ptr<std::int8_t>();
  rows.scale = packed.scale.data_ptr<float>();
  rows.rows = n;
  rows.cols = k;
  rows.stride = stride;
  ThrowIfError(kernels::QuantizeInt8({.x = ViewOf(w), .out = rows, .how = how}, stream));
  const Tensor dense = stride == k ? padded : padded.narrow(1, 0, k).contiguous();
  PackInt8Codes(dense.data_ptr<std::int8_t>(), n, k, packed.tiles.data_ptr<std::int8_t>(),
                packed.row_sum.data_ptr<std::int32_t>(), stream);
  return packed;
}

PackedInt8 PackInt8Transposed(const Tensor& x, const kernels::QuantizeOptions& how, const kernels::Stream& stream,
                              PackedInt8 reused) {
  PackedInt8 packed = PackedInt8::Reuse(std::move(reused), x.size(1), x.size(0));
  ThrowIfError(kernels::QuantizeInt8Transposed({.x = ViewOf(x),
                                                .scale = packed.scale.data_ptr<float>(),
                                                .tiles = packed.tiles.data_ptr<std::int8_t>(),
                                                .row_sum = packed.row_sum.data_ptr<std::int32_t>(),
                                                .how = how},
                                               stream));
  return packed;
}

void PackInt8Codes(const std::int8_t* codes, std::int64_t n, std::int64_t k, std::int8_t* tiles, std::int32_t* row_sum,
                   const kernels::Stream& stream) {
  const std::int64_t padded = kernels::Int8PaddedK(k);
  stream.ParallelFor(NumTiles(n), 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kernels::kInt8TileRows;
    const std::int64_t count = std::min(n, end * kernels::kInt8TileRows) - first;
    kernels::PackInt8Weight(codes + first * k, count, k, tiles + first * padded, row_sum + first);
  });
}

void UnpackInt8(const kernels::PackedInt8Weight& packed, const Tensor& out, const kernels::Stream& stream) {
  const auto unpack = [&]<typename T>(T* values) {
    stream.ParallelFor(NumTiles(packed.rows), 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t last = std::min(packed.rows, end * kernels::kInt8TileRows);
      for (std::int64_t n = begin * kernels::kInt8TileRows; n < last; ++n) {
        for (std::int64_t k = 0; k < packed.cols; ++k) {
          const std::int8_t code = kernels::Int8Code(packed, n, k);
          values[n * packed.cols + k] = kernels::RoundTo<T>(static_cast<float>(code));
        }
      }
    });
  };
  if (out.scalar_type() == torch::kBFloat16) {
    unpack(reinterpret_cast<kernels::BF16*>(out.data_ptr()));
  } else {
    unpack(out.data_ptr<float>());
  }
}

Tensor GradientThroughCodes(const Tensor& g, const Tensor& scale, const Tensor& codes) {
  const Tensor product = torch::mm(PadTo(g * scale, codes.scalar_type()), codes);
  return product.narrow(0, 0, g.size(0)).to(torch::kFloat32).contiguous();
}

}  // namespace nibble::trainer
