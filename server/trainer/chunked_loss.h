// The loss through a head, in chunks of rows, so that no tensor of tokens x vocabulary exists.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "server/trainer/autograd.h"

namespace nibble::trainer {

// Rows with a target. Other rows take no part in a loss; with completion-only loss, skipping them saves most of the
// work.
struct LossRows {
  std::vector<std::int64_t> row;
  std::vector<std::int32_t> target;
  std::int64_t count() const { return static_cast<std::int64_t>(row.size()); }
};
LossRows RowsWithTarget(const std::vector<std::int32_t>& targets);

// The gradients of a loss's inputs: the saved gradients, which include the loss's scale, times `grad`; then undefined
// ones for its five inputs that are not tensors. `grad` is the gradient from which backward() starts, usually 1. If a
// saved gradient is undefined, the forward pass has added it already (GradientSum): then throws std::logic_error unless
// `grad` is 1.
std::vector<torch::Tensor> LossGradients(std::vector<torch::Tensor> saved, const torch::Tensor& grad);

// A frozen head [V, K].
struct FrozenHead {
  torch::Tensor served;    // in the type that serving multiplies; hidden states have the same type
  torch::Tensor backward;  // of BackwardType; the same tensor if the types are equal
};

// A trained head [V, K].
struct TrainedHead {
  torch::Tensor master;  // [V, K] f32 or bf16 parameter
  FrozenHead read;       // the forms of the master that products read

  // Makes `read` of the master, in these types; a form in f32 is the master's memory.
  void Read(torch::ScalarType served, torch::ScalarType backward);
};

// Returns scale * sum of the losses of rows whose target is not -1, through a frozen head. hidden [T, K] has
// head.served's type. Stores the unscaled sum in *loss_sum.
torch::Tensor ApplyChunkedLoss(const torch::Tensor& hidden, const FrozenHead& head,
                               const std::vector<std::int32_t>& targets, double scale, double* loss_sum,
                               TrainingContext& context);
// Same through a trained head: gradients go to hidden and to the head's master. If the master holds an f32 gradient
// (held_gradient.h), the forward pass adds to it, so backward() must run once, from 1.
torch::Tensor ApplyTrainedHeadLoss(const torch::Tensor& hidden, const TrainedHead& head,
                                   const std::vector<std::int32_t>& targets, double scale, double* loss_sum,
                                   TrainingContext& context);
// The loss of each row, in the order of RowsWithTarget.
std::vector<float> RowLosses(const torch::Tensor& hidden, const FrozenHead& head,
                             const std::vector<std::int32_t>& targets, TrainingContext& context);

}  // namespace nibble::trainer
