#include "server/trainer/chunked_loss.h"

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kernels/ops/loss/cross_entropy.h"
#include "kernels/ops/matmul/matmul_library.h"
#include "server/model/working_rows.h"
#include "server/trainer/held_gradient.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Appends to *losses the losses of the rows whose numbers are in `index`; their targets are those of `rows` from
// `begin` on. Returns the gradients to the logits of these rows, times scale: CrossEntropy writes them over the logits.
Tensor ChunkLosses(const Tensor& hidden, const Tensor& head, const LossRows& rows, const Tensor& index,
                   std::int64_t begin, double scale, std::vector<float>* losses, TrainingContext& context) {
  ThrowIfCancelled(context.cancelled);
  const std::int64_t count = index.size(0);
  const Tensor rows_of = PadTo(hidden.index_select(0, index), hidden.scalar_type());
  Tensor logits = torch::empty({rows_of.size(0), head.size(0)}, torch::kFloat32);
  ThrowIfError(kernels::MatmulLibrary({.x = ViewOf(rows_of), .w = ViewOf(head), .y = ViewOf(logits)}, context.stream));
  losses->resize(static_cast<std::size_t>(begin + count));
  ThrowIfError(kernels::CrossEntropy({.logits = ViewOf(logits.narrow(0, 0, count)),
                                      .target = rows.target.data() + begin,
                                      .grad_scale = static_cast<float>(scale),
                                      .loss = losses->data() + begin},
                                     context.stream));
  return logits;
}

// Calls body(begin, row numbers) for at most kLossChunk rows at a time.
template <typename Body>
void ForEachLossChunk(const LossRows& rows, Body body) {
  for (std::int64_t begin = 0; begin < rows.count(); begin += model::kLossChunk) {
    const std::int64_t count = std::min(model::kLossChunk, rows.count() - begin);
    body(begin, torch::from_blob(const_cast<std::int64_t*>(rows.row.data()) + begin, {count}, torch::kInt64));
  }
}

// Returns the sum of the losses. Stores the gradient to `hidden`, times scale, in *grad_hidden. Adds the gradient to
// the head, times scale, to *grad_head, unless that is null.
double LossAndGradients(const Tensor& hidden, const FrozenHead& head, const std::vector<std::int32_t>& targets,
                        double scale, Tensor* grad_hidden, Tensor* grad_head, TrainingContext& context) {
  const LossRows rows = RowsWithTarget(targets);
  const torch::ScalarType type = head.backward.scalar_type();
  *grad_hidden = torch::zeros_like(hidden);
  std::vector<float> losses;
  ForEachLossChunk(rows, [&](std::int64_t begin, const Tensor& index) {
    const Tensor logits = PadTo(ChunkLosses(hidden, head.served, rows, index, begin, scale, &losses, context), type);
    const Tensor made = torch::mm(logits, head.backward);
    grad_hidden->index_copy_(0, index, made.narrow(0, 0, index.size(0)).to(hidden.scalar_type()));
    if (grad_head == nullptr) return;
    const Tensor rows_of = PadTo(hidden.index_select(0, index), type);
    AddProduct(*grad_head, logits.narrow(0, 0, rows_of.size(0)), rows_of, context.stream);
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

struct ChunkedLossFunction : torch::autograd::Function<ChunkedLossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const FrozenHead* head,
                        const std::vector<std::int32_t>* targets, double scale, double* loss_sum,
                        TrainingContext* context) {
    Tensor gradient;
    *loss_sum = LossAndGradients(hidden, *head, *targets, scale, &gradient, nullptr, *context);
    ctx->save_for_backward({gradient});
    return torch::tensor(*loss_sum * scale, torch::kFloat64);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return LossGradients(ctx->get_saved_variables(), grads[0]);
  }
};

struct TrainedHeadLossFunction : torch::autograd::Function<TrainedHeadLossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& master, const TrainedHead* head,
                        const std::vector<std::int32_t>* targets, double scale, double* loss_sum,
                        TrainingContext* context) {
    Tensor grad_hidden;
    GradientSum grad_head(master);
    *loss_sum = LossAndGradients(hidden, head->read, *targets, scale, &grad_hidden, &grad_head.sum(), *context);
    ctx->save_for_backward({grad_hidden, grad_head.Rest()});
    return torch::tensor(*loss_sum * scale, torch::kFloat64);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return LossGradients(ctx->get_saved_variables(), grads[0]);
  }
};

}  // namespace

std::vector<Tensor> LossGradients(std::vector<Tensor> saved, const Tensor& grad) {
  if (const double factor = grad.item<double>(); factor != 1.0) {
    for (Tensor& gradient : saved) {
      if (!gradient.defined()) throw std::logic_error("the head's gradient is for a loss that starts from 1");
      gradient = gradient * factor;
    }
  }
  constexpr std::size_t kOtherInputs = 5;  // those that are not tensors
  saved.resize(saved.size() + kOtherInputs);
  return saved;
}

LossRows RowsWithTarget(const std::vector<std::int32_t>& targets) {
  LossRows rows;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    rows.row.push_back(static_cast<std::int64_t>(t));
    rows.target.push_back(targets[t]);
  }
  return rows;
}

void TrainedHead::Read(torch::ScalarType served, torch::ScalarType backward) {
  const torch::NoGradGuard no_gradients;
  const Tensor values = master.detach();
  read.served = values.to(served);
  read.backward = backward == served ? read.served : values.to(backward);
}

Tensor ApplyChunkedLoss(const Tensor& hidden, const FrozenHead& head, const std::vector<std::int32_t>& targets,
                        double scale, double* loss_sum, TrainingContext& context) {
  return ChunkedLossFunction::apply(hidden, &head, &targets, scale, loss_sum, &context);
}

Tensor ApplyTrainedHeadLoss(const Tensor& hidden, const TrainedHead& head, const std::vector<std::int32_t>& targets,
                            double scale, double* loss_sum, TrainingContext& context) {
  return TrainedHeadLossFunction::apply(hidden, head.master, &head, &targets, scale, loss_sum, &context);
}

std::vector<float> RowLosses(const Tensor& hidden, const FrozenHead& head, const std::vector<std::int32_t>& targets,
                             TrainingContext& context) {
  const torch::NoGradGuard no_gradients;
  const LossRows rows = RowsWithTarget(targets);
  std::vector<float> losses;
  ForEachLossChunk(rows, [&](std::int64_t begin, const Tensor& index) {
    ChunkLosses(hidden, head.served, rows, index, begin, /*scale=*/1.0, &losses, context);
  });
  return losses;
}

}  // namespace nibble::trainer
