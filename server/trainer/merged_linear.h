// Linears of merge-aware QLoRA: a frozen NF4 weight with a trained adapter, merged and quantized to int8 as a
// conversion does it. The forward product is that of the int8 model (docs/numerics.md 14).
#pragma once
#include <torch/types.h>

#include "kernels/formats/nf4.h"
#include "server/trainer/autograd.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/packed_int8.h"

namespace nibble::trainer {

// Memory for merging a weight, shared by all linears of a model.
struct MergeScratch {
  torch::Tensor values;  // [elements of the largest linear] f32
  torch::Tensor delta;   // the same
};

struct MergedWeight {
  kernels::Nf4Weight base;
  torch::Tensor lora_a;  // undefined, or [r, K] f32 parameter
  torch::Tensor lora_b;  // undefined, or [N, r] f32 parameter
  double scaling = 0;
  torch::Tensor bias;  // undefined, or [N] f32
  PackedInt8 merged;   // Q(dequantize(base) + (B A) * scaling), by Merge

  // Makes the int8 form with the arithmetic of convert::ConvertModel; called once per optimizer step. Throws the
  // kernel's error.
  void Merge(MergeScratch& scratch, const kernels::Stream& stream);
};

// y [T, N] f32 = rows W^T + bias with the merged W, as one node, which keeps recomputed rows, or the codes. Gradients
// pass the quantizers unchanged: that of the rows is g W, with W's codes and scales; those of the adapter are dB =
// scaling * g^T (x A^T) and dA = scaling * (g B)^T x, so no gradient of W is made. Products have the scratch's type.
torch::Tensor ApplyMergedLinear(const CodedInput& input, const MergedWeight& weight, TrainingContext& context);

}  // namespace nibble::trainer
