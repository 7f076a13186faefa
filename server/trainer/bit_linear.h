// BitNet linears with gradients. The serving kernels quantize rows and weights, so the forward bits are those of the
// ternary artifact. The backward pass uses the straight-through estimator (docs/numerics.md 2, 6 and 10).
#pragma once
#include <torch/types.h>

#include "kernels/formats/ternary.h"
#include "server/trainer/autograd.h"
#include "server/trainer/coded_rows.h"

namespace nibble::trainer {

struct BitLinearOptions : CodedRowOptions {
  BitLinearOptions() { activations.min_absmax = kernels::kBitNetMinAbsmax; }
};

// A master weight and the ternary form that products read.
struct BitWeight {
  torch::Tensor master;  // [N, K] f32 | bf16 parameter
  torch::Tensor bias;    // undefined, or [N] f32 | bf16 parameter
  torch::Tensor tiles;   // [PackedTernaryBytes(N, K)] u8
  torch::Tensor scale;   // [N] f32

  // Makes tiles and scale from the master; called once per optimizer step. With kReciprocal, the scale is its
  // ReciprocalScale. Throws the kernel's error.
  void Ternarize(const kernels::Stream& stream, kernels::RowScaling scaling = kernels::RowScaling::kNative);
  kernels::PackedTernaryWeight packed() const;
};

// y = rows * ternary(W)^T + bias, in x's type, as one node. Keeps the packed weight and the master by reference, the
// integer rows and the scales. If x is quantized here and its scale has a gradient, it also keeps x.
torch::Tensor ApplyBitLinear(const CodedInput& input, const BitWeight& weight, const BitLinearOptions& options,
                             TrainingContext& context);

// The same linear while quantization is not complete, in float products: y = X W^T + bias, where X = x + share *
// (quantized(x) - x), and W lies likewise between the master and its ternary form. Gradients pass straight through both
// quantizers; an estimator acts on the quantized share of a gradient.
//   x      [..., K]  f32 | bf16; y has its type
//   share  0 to 1
// Products are f32 in the forward pass and have the scratch's type in the backward pass. Keeps x, and the weight by
// reference: it must outlive the graph, as options and context must. Source: warm-up quantization of Hugging Face's
// "Fine-tuning LLMs to 1.58bit", x + lambda * (quant(x) - x).detach().
torch::Tensor ApplyPartlyBitLinear(const torch::Tensor& x, const BitWeight& weight, const BitLinearOptions& options,
                                   double share, TrainingContext& context);

}  // namespace nibble::trainer
