// Linears with float masters whose products run in int8, each of the three on its own switch: forward, gradient of the
// input, gradient of the weight. Rows and gradients are quantized when they are multiplied, weights once per step
// or, with stochastic rounding, before every forward pass (docs/numerics.md 12).
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "server/trainer/autograd.h"
#include "server/trainer/coded_options.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/packed_int8.h"

namespace nibble::trainer {

// A master weight and the int8 forms that products read.
struct Int8Weight {
  torch::Tensor master;      // [N, K] f32 or bf16 parameter
  torch::Tensor bias;        // undefined, or [N] parameter of the same type
  std::uint64_t number = 0;  // of the linear in the model: keeps draws of stochastic rounding apart
  PackedInt8 packed;         // of the master [N, K], for forward products
  PackedInt8 transposed;     // of its transpose [K, N], for the input's gradient
  // bf16 [N, K], for the products that stay float and multiply bf16: the master rounded, or a bf16 master itself; else
  // undefined.
  torch::Tensor rounded;

  // Makes the forms that the options need; called once per optimizer step. `bf16`: whether products that stay float
  // multiply bf16. Does not make the form of the forward product if the options round that stochastically. Throws the
  // kernel's error.
  void Quantize(const Int8LinearOptions& options, bool bf16, const kernels::Stream& stream);
  // Makes the form of the forward product; with stochastic rounding, called before every forward pass with the number
  // of the micro-batch.
  void QuantizeForward(const Int8LinearOptions& options, std::uint64_t draw, const kernels::Stream& stream);
};

// y [T, N] f32 = x W^T + bias, as one node. x with rows: the product reads the rows, which the backward pass keeps
// instead of x. x without rows, f32 or bf16: the product quantizes x or reads it as it is, and the node keeps x.
// Float backward products have the scratch's type.
torch::Tensor ApplyInt8Linear(const CodedInput& input, const Int8Weight& weight, const Int8LinearOptions& options,
                              std::uint64_t draw, TrainingContext& context);

}  // namespace nibble::trainer
