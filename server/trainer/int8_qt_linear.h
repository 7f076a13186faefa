// Linears whose weights are stored in int8 without a float copy (int8 quantized training). The forward product is that
// of the served int8 model, with codes or float rows; backward products are float (docs/numerics.md 13).
#pragma once
#include <torch/types.h>

#include "kernels/formats/int8.h"
#include "server/trainer/autograd.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/tensor_ref.h"

namespace nibble::trainer {

// Memory of one weight in the packed form, shared by all linears of a model: packing is cheap beside the product.
struct Int8Panels {
  torch::Tensor tiles;    // [PackedInt8Bytes of the largest linear] i8
  torch::Tensor row_sum;  // [RoundUp(largest N, 16)] i32
};

// A trained weight.
struct Int8QtWeight {
  torch::Tensor codes;  // [N, K] i8
  torch::Tensor scale;  // [N] f32
  torch::Tensor grad;   // [N, K] bf16 or f32: backward passes add to it in place
  torch::Tensor bias;   // undefined, or [N] f32 parameter

  // Codes and scales of `initial` [N, K] f32, in the arithmetic of a conversion to int8; a gradient of zeros of type
  // `grad_type`. Throws the kernel's error.
  static Int8QtWeight Make(const torch::Tensor& initial, bool one_scale, torch::ScalarType grad_type,
                           const kernels::Stream& stream);

  // A reference to the codes and scales. RefOf(grad) refers to the gradient.
  TensorRef value() const;
  // The packed form, in the memory of `panels`. Valid until the panels are written again.
  kernels::PackedInt8Weight Pack(Int8Panels& panels, const kernels::Stream& stream) const;
};

// y [T, N] f32 = rows W^T + bias, as one node, which keeps the rows: those of `input`, or its float x [T, K] (f32 or
// bf16) if it has none. Backward: the gradient of the rows is (g * scale) codes, that of the weight is g^T rows, both
// in the scratch's type; codes are exact in bf16. The gradient of x has x's type.
torch::Tensor ApplyInt8QtLinear(const CodedInput& input, const Int8QtWeight& weight, Int8Panels& panels,
                                TrainingContext& context);

}  // namespace nibble::trainer
