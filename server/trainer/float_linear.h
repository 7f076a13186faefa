// A trained float linear, with the BEST_EFFORT products of the program's library.
#pragma once
#include <torch/types.h>

#include "server/trainer/autograd.h"

namespace nibble::trainer {

struct FloatLinear {
  torch::Tensor master;   // [N, K] f32 or bf16 parameter
  torch::Tensor rounded;  // [N, K] bf16, made of the master by Round, or the master; undefined if compute is f32
  torch::Tensor bias;     // undefined, or [N] parameter of the same type

  void Round();
};

// y = x W^T + bias. An f32 x [T, K] is multiplied by the master, which is then f32 too; a bf16 x by the rounded weight.
// The result is [T, N] f32. Backward products have the scratch's type. The graph keeps x unless the input has
// recomputed rows.
torch::Tensor ApplyFloatLinear(const FloatInput& input, const FloatLinear& linear, TrainingContext& context);

}  // namespace nibble::trainer
