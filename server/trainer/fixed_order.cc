#include "server/trainer/fixed_order.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>

#include "kernels/ops/elementwise/embedding.h"
#include "kernels/ops/loss/cross_entropy.h"
#include "kernels/ops/matmul/matmul_dense.h"
#include "kernels/ops/matmul/matmul_int8.h"
#include "kernels/ops/matmul/matmul_int8_weight.h"
#include "server/model/working_rows.h"
#include "server/trainer/coded_rows.h"
#include "server/trainer/held_gradient.h"
#include "server/trainer/packed_int8.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kHeadSlice = 1024;     // rows of a head whose panels are made at once: they fit into a cache
constexpr std::int64_t kEmbeddingGrain = 64;  // minimum columns per thread: some cache lines

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& master, const Tensor& table,
                        const std::vector<std::int32_t>* ids, TrainingContext* context) {
    Tensor out = EmbeddingRows(*ids, table, *context);
    Remember(ctx, "context", context);
    ctx->save_for_backward({torch::tensor(std::vector<std::int64_t>(ids->begin(), ids->end())), master});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // Adds row by row in order. index_add_ would need its deterministic form, which sorts first. Threads split the
    // columns.
    const auto& context = Recall<const TrainingContext>(ctx, "context");
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &ids = saved[0], &master = saved[1];
    const Tensor g = grads[0].contiguous();
    GradientSum grad(master);
    float* to = grad.sum().data_ptr<float>();
    const float* from = g.data_ptr<float>();
    const std::int64_t* id = ids.data_ptr<std::int64_t>();
    const std::int64_t cols = g.size(1);
    context.stream.ParallelFor(cols, kEmbeddingGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < g.size(0); ++t) {
        float* row = to + id[t] * cols;
        for (std::int64_t i = begin; i < end; ++i) row[i] += from[t * cols + i];
      }
    });
    return {grad.Rest(), Tensor(), Tensor(), Tensor()};
  }
};

// For each kind of head: the logits; the matrix [V, K] of backward products, in `type`; and the gradient of the hidden
// states, made from the gradient of their logits and that matrix.
Tensor Logits(const Tensor& hidden, const DenseWeight& head, TrainingContext& context) {
  return DenseLogits(hidden, head, context);
}
Tensor BackwardOf(const DenseWeight& head, torch::ScalarType type, const TrainingContext& /*context*/) {
  return head.served.to(type);
}
Tensor GradientOfHidden(const Tensor& grad_logits, const DenseWeight& /*head*/, const Tensor& backward) {
  const Tensor product = torch::mm(PadTo(grad_logits, backward.scalar_type()), backward);
  return product.narrow(0, 0, grad_logits.size(0)).to(torch::kFloat32);
}

Tensor Logits(const Tensor& hidden, const Int8Head& head, TrainingContext& context) {
  return Int8Logits(hidden, head, context);
}
Tensor BackwardOf(const Int8Head& head, torch::ScalarType type, const TrainingContext& context) {
  Tensor codes = torch::empty({head.weight.rows, head.weight.cols}, type);
  UnpackInt8(head.weight, codes, context.stream);
  return codes;
}
Tensor GradientOfHidden(const Tensor& grad_logits, const Int8Head& head, const Tensor& backward) {
  return GradientThroughCodes(grad_logits, torch::from_blob(const_cast<float*>(head.weight.scale), {head.weight.rows}),
                              backward);
}

// Returns the sum of the losses. Stores the gradient to `hidden`, times scale, in *grad_hidden. Adds the gradient to
// the head, times scale, to *grad_head, unless that is null.
template <typename Head>
double LossAndGradients(const Tensor& hidden, const Head& head, const std::vector<std::int32_t>& targets, double scale,
                        Tensor* grad_hidden, Tensor* grad_head, TrainingContext& context) {
  const LossRows rows = RowsWithTarget(targets);
  const torch::ScalarType type = context.scratch.scalar_type();
  *grad_hidden = torch::zeros(hidden.sizes(), torch::kFloat32);
  const Tensor backward = BackwardOf(head, type, context);
  double loss_sum = 0;
  for (std::int64_t begin = 0; begin < rows.count(); begin += model::kLossChunk) {
    ThrowIfCancelled(context.cancelled);
    const std::int64_t count = std::min(model::kLossChunk, rows.count() - begin);
    const Tensor index = torch::from_blob(const_cast<std::int64_t*>(rows.row.data()) + begin, {count}, torch::kInt64);
    const Tensor chunk = hidden.index_select(0, index);
    const Tensor logits = Logits(chunk, head, context);
    std::vector<float> losses(static_cast<std::size_t>(count));
    ThrowIfError(kernels::CrossEntropy({.logits = ViewOf(logits),
                                        .target = rows.target.data() + begin,
                                        .grad_scale = static_cast<float>(scale),
                                        .loss = losses.data()},
                                       context.stream));
    for (const float loss : losses) loss_sum += loss;
    // CrossEntropy has written the gradients over the logits. With a trained head, two products read them in `type`, so
    // they are converted once, here.
    const Tensor grad_logits = grad_head == nullptr ? logits : PadTo(logits, type);
    grad_hidden->index_copy_(0, index, GradientOfHidden(grad_logits, head, backward).narrow(0, 0, count));
    if (grad_head != nullptr) AddProduct(*grad_head, grad_logits, PadTo(chunk, type), context.stream);
  }
  return loss_sum;
}

struct DenseLossFunction : torch::autograd::Function<DenseLossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& master, const DenseWeight* head,
                        const std::vector<std::int32_t>* targets, double scale, double* loss_sum,
                        TrainingContext* context) {
    Tensor grad_hidden;
    GradientSum grad_head(master);
    *loss_sum = LossAndGradients(hidden, *head, *targets, scale, &grad_hidden, &grad_head.sum(), *context);
    ctx->save_for_backward({grad_hidden, grad_head.Rest()});
    return torch::tensor(*loss_sum * scale, torch::kFloat64);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return LossGradients(ctx->get_saved_variables(), grads[0]);
  }
};

// A separate function, because torch accepts no undefined tensors as inputs.
template <typename Head>
struct FrozenLossFunction : torch::autograd::Function<FrozenLossFunction<Head>> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Head* head,
                        const std::vector<std::int32_t>* targets, double scale, double* loss_sum,
                        TrainingContext* context) {
    Tensor grad_hidden;
    *loss_sum = LossAndGradients(hidden, *head, *targets, scale, &grad_hidden, nullptr, *context);
    ctx->save_for_backward({grad_hidden});
    return torch::tensor(*loss_sum * scale, torch::kFloat64);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return LossGradients(ctx->get_saved_variables(), grads[0]);
  }
};

struct DenseLinearFunction : torch::autograd::Function<DenseLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& master, const std::optional<Tensor>& bias,
                        const DenseWeight* weight, TrainingContext* context) {
    ThrowIfCancelled(context->cancelled);
    Remember(ctx, "context", context);
    Remember(ctx, "weight", weight);
    Tensor y = context->Output({x.size(0), master.size(0)});
    ThrowIfError(kernels::MatmulDense({.x = ViewOf(x),
                                       .w = weight->packed(),
                                       .bias = bias.has_value() ? bias->data_ptr<float>() : nullptr,
                                       .y = ViewOf(y)},
                                      context->stream));
    ctx->saved_data["has_bias"] = bias.has_value();
    ctx->save_for_backward({x});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& context = Recall<const TrainingContext>(ctx, "context");
    const auto& weight = Recall<const DenseWeight>(ctx, "weight");
    ThrowIfCancelled(context.cancelled);
    const Tensor x = ctx->get_saved_variables()[0];
    const torch::ScalarType type = context.scratch.scalar_type();
    const Tensor g = grads[0].contiguous();
    const Tensor padded = PadTo(g, type);
    const Tensor grad_x = torch::mm(padded, weight.served.to(type)).narrow(0, 0, g.size(0)).to(torch::kFloat32);
    const Tensor grad_master = AddOrReturnProduct(weight.master, padded, PadTo(x, type), context.stream);
    const Tensor grad_bias = ctx->saved_data["has_bias"].toBool() ? g.sum(0) : Tensor();
    return {grad_x, grad_master, grad_bias, Tensor(), Tensor()};
  }
};

}  // namespace

void DenseWeight::Round(const kernels::Stream& stream) {
  served = master.detach().to(torch::kBFloat16);
  if (master.requires_grad()) PackDense(served, panels, stream);
}

kernels::PackedDenseWeight DenseWeight::packed() const {
  return {panels.data_ptr(), served.scalar_type() == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32,
          served.size(0), served.size(1)};
}

Tensor EmbeddingRows(const std::vector<std::int32_t>& ids, const Tensor& table, TrainingContext& context) {
  const auto num_ids = static_cast<std::int64_t>(ids.size());
  Tensor out = torch::empty({num_ids, table.size(1)}, torch::kFloat32);
  ThrowIfError(kernels::Embedding(
      {.ids = ids.data(), .num_ids = num_ids, .table = ViewOf(table), .packed = {}, .out = ViewOf(out)},
      context.stream));
  return out;
}

Tensor ApplyEmbedding(const std::vector<std::int32_t>& ids, const Tensor& table, const Tensor& master,
                      TrainingContext& context) {
  return EmbeddingFunction::apply(master, table, &ids, &context);
}

Tensor DenseLogits(const Tensor& hidden, const DenseWeight& head, TrainingContext& context) {
  Tensor logits = torch::empty({hidden.size(0), head.served.size(0)}, torch::kFloat32);
  const auto multiply = [&](const kernels::PackedDenseWeight& w, const kernels::Matrix& y) {
    ThrowIfError(kernels::MatmulDense({.x = ViewOf(hidden), .w = w, .y = y}, context.stream));
  };
  if (head.panels.defined()) {
    multiply(head.packed(), ViewOf(logits));
    return logits;
  }
  Tensor panels;
  for (std::int64_t begin = 0; begin < head.served.size(0); begin += kHeadSlice) {
    const std::int64_t count = std::min(kHeadSlice, head.served.size(0) - begin);
    multiply(PackDense(head.served.narrow(0, begin, count), panels, context.stream),
             kernels::Columns(ViewOf(logits), begin, count));
  }
  return logits;
}

Tensor ApplyDenseLoss(const Tensor& hidden, const DenseWeight& head, const std::vector<std::int32_t>& targets,
                      double scale, double* loss_sum, TrainingContext& context) {
  if (!head.master.defined()) {
    return FrozenLossFunction<DenseWeight>::apply(hidden, &head, &targets, scale, loss_sum, &context);
  }
  return DenseLossFunction::apply(hidden, head.master, &head, &targets, scale, loss_sum, &context);
}

Tensor ApplyDenseLinear(const Tensor& x, const DenseWeight& weight, const Tensor& bias, TrainingContext& context) {
  const auto bias_f32 = bias.defined() ? std::optional<Tensor>(bias.to(torch::kFloat32)) : std::nullopt;
  return DenseLinearFunction::apply(x, weight.master, bias_f32, &weight, &context);
}

Tensor Int8Logits(const Tensor& hidden, const Int8Head& head, TrainingContext& context) {
  Tensor logits = torch::empty({hidden.size(0), head.weight.rows}, torch::kFloat32);
  if (head.float_rows) {
    ThrowIfError(
        kernels::MatmulInt8Weight({.x = ViewOf(hidden), .w = head.weight, .y = ViewOf(logits)}, context.stream));
  } else {
    const CodedRows rows = QuantizeRows(hidden, head.rows, context);
    ThrowIfError(kernels::MatmulInt8({.x = rows.view(), .w = head.weight, .y = ViewOf(logits)}, context.stream));
  }
  return logits;
}

Tensor ApplyInt8Loss(const Tensor& hidden, const Int8Head& head, const std::vector<std::int32_t>& targets, double scale,
                     double* loss_sum, TrainingContext& context) {
  return FrozenLossFunction<Int8Head>::apply(hidden, &head, &targets, scale, loss_sum, &context);
}

}  // namespace nibble::trainer
