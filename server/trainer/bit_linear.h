// BitNet linears with gradients. The serving kernels quantize rows and weights, so the forward bits are those of the
// ternary artifact. The backward pass uses the straight-through estimator (docs/numerics.md 2, 6 and 10).
#pragma once
#include <torch/types.h>

#include <memory>

#include "kernels/formats/int8.h"
#include "kernels/formats/ternary.h"
#include "kernels/ste.h"
#include "server/trainer/autograd.h"

namespace nibble::trainer {

struct BitLinearOptions {
  kernels::QuantizeOptions activations = {.min_absmax = kernels::kBitNetMinAbsmax};
  kernels::Ste ste = kernels::Ste::kIdentity;
  bool scale_grad = false;
};

// A master weight and the ternary form that products read.
struct BitWeight {
  torch::Tensor master;  // [N, K] f32 | bf16 parameter
  torch::Tensor bias;    // undefined, or [N] f32 parameter
  torch::Tensor tiles;   // [PackedTernaryBytes(N, K)] u8
  torch::Tensor scale;   // [N] f32

  // Makes tiles and scale from the master; called once per optimizer step. Throws the kernel's error.
  void Ternarise(const kernels::Stream& stream);
  kernels::PackedTernaryWeight packed() const;
};

// Quantized rows, shared by the linears that read them.
struct BitRows {
  torch::Tensor codes;  // [T, stride] i8, or i16 for 16 bits
  torch::Tensor scale;  // [T] f32
  std::int64_t cols = 0;

  kernels::QuantizedRows view() const;
};

// The input of BitLinears. With rows, `x` only carries their gradient: it has the shape but no memory of its own.
struct BitInput {
  torch::Tensor x;                      // [..., K] f32 | bf16; all dimensions but the last are rows
  std::shared_ptr<const BitRows> rows;  // null: the linear quantizes x itself
};

// rms_norm and quantizer in one node, for all linears that follow. Keeps x and one number per row; if the rows'
// scale has a gradient, also the rows.
BitInput NormBitInput(const torch::Tensor& x, const torch::Tensor& weight, double eps, const BitLinearOptions& options,
                      AutogradContext& context);

// y = rows * ternary(W)^T + bias, in x's type, as one node. Keeps the packed weight by reference, the integer rows and
// the scales. With estimators other than identity, it also keeps the master by reference. If x is quantized here and
// its scale has a gradient, it also keeps x.
torch::Tensor ApplyBitLinear(const BitInput& input, const BitWeight& weight, const BitLinearOptions& options,
                             AutogradContext& context);

}  // namespace nibble::trainer
