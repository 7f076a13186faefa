// BitNet linears with gradients: rows and weights are quantised by the kernels that serve, so the forward bits are those of
// the ternary artifact; the backward pass is the straight-through estimator's (docs/numerics.md 2, 6 and 10).
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

  // Makes tiles and scale from the master: once an optimiser step. Throws what the kernel answers.
  void Ternarise(const kernels::Stream& stream);
  kernels::PackedTernaryWeight packed() const;
};

// Quantised rows, shared by the linears that read them.
struct BitRows {
  torch::Tensor codes;  // [T, stride] i8, or i16 for 16 bits
  torch::Tensor scale;  // [T] f32
  std::int64_t cols = 0;

  kernels::QuantizedRows view() const;
};

// What BitLinears read. With rows, `x` only carries their gradient: it has the shape and no memory of its own.
struct BitInput {
  torch::Tensor x;  // [..., K] f32 | bf16; all dimensions but the last are rows
  std::shared_ptr<const BitRows> rows;  // null: the linear quantises x itself
};

// rms_norm and quantiser in one node, for all linears behind it. Keeps x and one number a row.
BitInput NormBitInput(const torch::Tensor& x, const torch::Tensor& weight, double eps, const BitLinearOptions& options,
                      AutogradContext& context);

// y = rows * ternary(W)^T + bias, of x's type, as one node. It keeps the packed weight by reference, integer rows and scales;
// beside the identity estimator also the master by reference, and x where its scale has a gradient.
torch::Tensor ApplyBitLinear(const BitInput& input, const BitWeight& weight, const BitLinearOptions& options,
                             AutogradContext& context);

}  // namespace nibble::trainer
