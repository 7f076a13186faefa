// The float parts of a promised artifact with gradients: forward by the kernels that serve, in their fixed order, so that
// training gives the bits of serving (docs/numerics.md 9 and 10). Backward passes are free of that.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "kernels/formats/dense.h"
#include "server/trainer/autograd.h"

namespace nibble::trainer {

// Rows [T, K] f32 of `table` [V, K] by id; the gradient goes to `master`, of which the table is a rounding.
torch::Tensor ApplyEmbedding(const std::vector<std::int32_t>& ids, const torch::Tensor& table, const torch::Tensor& master,
                             AutogradContext& context);

// A float layer [V, K]: what it is trained in, what it is served in (a rounding of it), and that in panels.
struct DenseHead {
  torch::Tensor master;  // [V, K] f32 parameter
  torch::Tensor served;  // [V, K] bf16
  torch::Tensor panels;  // of served
  kernels::PackedDenseWeight packed() const;
};

// Logits [T, V] f32, without gradients.
torch::Tensor DenseLogits(const torch::Tensor& hidden, const DenseHead& head, AutogradContext& context);
// As ApplyChunkedLoss, through a trained head: gradients go to hidden and to the head's master.
torch::Tensor ApplyDenseLoss(const torch::Tensor& hidden, const DenseHead& head, const std::vector<std::int32_t>& targets,
                             double scale, double* loss_sum, AutogradContext& context);

}  // namespace nibble::trainer
