// The float parts (embedding, head, linears that stay float), with gradients, of a model whose bits are promised.
// Forward passes use the serving kernels in their fixed order, so that training gives the bits of serving
// (docs/numerics.md 9 and 10). Backward passes may use other products.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "kernels/formats/dense.h"
#include "kernels/formats/int8.h"
#include "server/trainer/autograd.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/coded_options.h"

namespace nibble::trainer {

// Rows [T, K] f32 of `table` [V, K] by id, without gradients.
torch::Tensor EmbeddingRows(const std::vector<std::int32_t>& ids, const torch::Tensor& table, TrainingContext& context);
// The same. `table` is `master` rounded; the gradient goes to `master`.
torch::Tensor ApplyEmbedding(const std::vector<std::int32_t>& ids, const torch::Tensor& table,
                             const torch::Tensor& master, TrainingContext& context);

// A float weight [N, K], of the head or of a linear, in three forms: the trained master, the rounded form that is
// served, and the served form in panels.
struct DenseWeight {
  torch::Tensor master;  // [N, K] f32 | bf16 parameter; undefined if it is frozen
  torch::Tensor served;  // [N, K] bf16
  // Of served. Undefined for a frozen head: DenseLogits makes them in slices, because all together take as much memory
  // as the head.
  torch::Tensor panels;

  // Makes the served form, and its panels if it is trained, from the master.
  void Round(const kernels::Stream& stream);
  kernels::PackedDenseWeight packed() const;
};

// Logits [T, V] f32, without gradients.
torch::Tensor DenseLogits(const torch::Tensor& hidden, const DenseWeight& head, TrainingContext& context);
// Like ApplyChunkedLoss or ApplyTrainedHeadLoss, but in the fixed order: gradients go to hidden, and to the head's
// master if it has one.
torch::Tensor ApplyDenseLoss(const torch::Tensor& hidden, const DenseWeight& head,
                             const std::vector<std::int32_t>& targets, double scale, double* loss_sum,
                             TrainingContext& context);

// y [T, N] f32 = x W^T + bias of a linear that stays float, as one node, which keeps x [T, K] f32. bias: undefined, or
// [N]. Backward products have the scratch's type and read the served weight; its gradient goes to the master unchanged.
// `weight` must outlive the graph.
torch::Tensor ApplyDenseLinear(const torch::Tensor& x, const DenseWeight& weight, const torch::Tensor& bias,
                               TrainingContext& context);

// The frozen int8 head of an int8 base. Hidden states become codes, unless linears of the model read float rows.
struct Int8Head {
  kernels::PackedInt8Weight weight;
  bool float_rows = false;
  CodedRowOptions rows = {};
};

// As DenseLogits and ApplyDenseLoss. The gradient of hidden is that of the codes times their scales; it passes straight
// through the quantizer of hidden.
torch::Tensor Int8Logits(const torch::Tensor& hidden, const Int8Head& head, TrainingContext& context);
torch::Tensor ApplyInt8Loss(const torch::Tensor& hidden, const Int8Head& head, const std::vector<std::int32_t>& targets,
                            double scale, double* loss_sum, TrainingContext& context);

}  // namespace nibble::trainer
