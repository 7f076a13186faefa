#include "server/trainer/fixed_order.h"

#include <torch/autograd.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/attention.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kv_store.h"
#include "kernels/ops/matmul_dense.h"
#include "server/base/status_macros.h"
#include "server/model/working_rows.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/segment_attention.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Context = nibble::trainer::AutogradContext;

struct PagedAttentionFunction : torch::autograd::Function<PagedAttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const PagedSegments* segments,
                        std::int64_t num_heads, std::int64_t num_kv_heads, Context* context) {
    Remember(ctx, "segments", segments);
    Remember(ctx, "context", context);
    ctx->saved_data["heads"] = num_heads;
    ctx->saved_data["kv_heads"] = num_kv_heads;
    Tensor out = torch::empty_like(q);
    const kernels::KvRows rows = segments->rows();
    ThrowIfError(kernels::KvStore({.k = ViewOf(k), .v = ViewOf(v), .cache = segments->cache(), .layer = 0, .rows = rows}, context->stream));
    ThrowIfError(kernels::Attention({.q = ViewOf(q),
                                     .cache = segments->cache(),
                                     .layer = 0,
                                     .rows = rows,
                                     .num_heads = num_heads,
                                     .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.size(1) / num_heads))),
                                     .out = ViewOf(out)},
                                    context->stream));
    // What attention has read: a gradient goes straight through the rounding.
    const torch::ScalarType kept = ToTorch(segments->cache().dtype);
    ctx->save_for_backward({q, k.to(kept), v.to(kept)});
    return out;
  }

  // Through torch's attention over the same values: scores are made again, never kept.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& segments = Recall<const PagedSegments>(ctx, "segments");
    auto& context = Recall<Context>(ctx, "context");
    variable_list leaves;
    for (const Tensor& saved : ctx->get_saved_variables()) {
      leaves.push_back(saved.detach().to(torch::kFloat32).requires_grad_(true));
    }
    const torch::AutoGradMode with_gradients(true);
    const Tensor out = ApplySegmentAttention(leaves[0], leaves[1], leaves[2], segments.segments(), ctx->saved_data["heads"].toInt(),
                                             ctx->saved_data["kv_heads"].toInt(), context);
    const variable_list made = torch::autograd::grad({out}, leaves, {grads[0].contiguous()});
    return {made[0], made[1], made[2], Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

constexpr std::int64_t kEmbeddingGrain = 64;  // columns of a row that are worth a thread: some cache lines

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& master, const Tensor& table, const std::vector<std::int32_t>* ids,
                        Context* context) {
    const auto num_ids = static_cast<std::int64_t>(ids->size());
    Tensor out = torch::empty({num_ids, table.size(1)}, torch::kFloat32);
    ThrowIfError(kernels::Embedding({.ids = ids->data(), .num_ids = num_ids, .table = ViewOf(table), .packed = {}, .out = ViewOf(out)},
                                    context->stream));
    Remember(ctx, "context", context);
    ctx->saved_data["vocabulary"] = master.size(0);
    ctx->save_for_backward({torch::tensor(std::vector<std::int64_t>(ids->begin(), ids->end()))});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // Row by row in order: index_add_ would do, but only its deterministic form, which sorts first. Threads share out the columns.
    const auto& context = Recall<const Context>(ctx, "context");
    const Tensor ids = ctx->get_saved_variables()[0];
    const Tensor g = grads[0].contiguous();
    Tensor grad = torch::zeros({ctx->saved_data["vocabulary"].toInt(), g.size(1)}, torch::kFloat32);
    float* to = grad.data_ptr<float>();
    const float* from = g.data_ptr<float>();
    const std::int64_t* id = ids.data_ptr<std::int64_t>();
    const std::int64_t cols = g.size(1);
    context.stream.ParallelFor(cols, kEmbeddingGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < g.size(0); ++t) {
        float* row = to + id[t] * cols;
        for (std::int64_t i = begin; i < end; ++i) row[i] += from[t * cols + i];
      }
    });
    return {grad, Tensor(), Tensor(), Tensor()};
  }
};

struct DenseLossFunction : torch::autograd::Function<DenseLossFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& hidden, const Tensor& master, const DenseHead* head,
                        const std::vector<std::int32_t>* targets, double scale, double* loss_sum, Context* context) {
    const LossRows rows = RowsWithTarget(*targets);
    const torch::ScalarType type = context->scratch.scalar_type();
    Tensor grad_hidden = torch::zeros(hidden.sizes(), torch::kFloat32);
    Tensor grad_head = torch::zeros(master.sizes(), torch::kFloat32);
    const Tensor served = head->served.to(type);
    *loss_sum = 0;
    for (std::int64_t begin = 0; begin < rows.count(); begin += model::kLossChunk) {
      ThrowIfCancelled(context->cancelled);
      const std::int64_t count = std::min(model::kLossChunk, rows.count() - begin);
      const Tensor index = torch::from_blob(const_cast<std::int64_t*>(rows.row.data()) + begin, {count}, torch::kInt64);
      const Tensor chunk = hidden.index_select(0, index);
      Tensor logits = DenseLogits(chunk, *head, *context);
      std::vector<float> losses(static_cast<std::size_t>(count));
      ThrowIfError(kernels::CrossEntropy({.logits = ViewOf(logits),
                                          .target = rows.target.data() + begin,
                                          .grad_scale = static_cast<float>(scale),
                                          .loss = losses.data()},
                                         context->stream));
      for (const float loss : losses) *loss_sum += loss;
      const Tensor grad_logits = PadTo(logits, type);
      grad_hidden.index_copy_(0, index, torch::mm(grad_logits, served).narrow(0, 0, count).to(torch::kFloat32));
      grad_head.add_(torch::mm(grad_logits.t(), PadTo(chunk, type)));
    }
    ctx->save_for_backward({grad_hidden, grad_head});
    return torch::tensor(*loss_sum * scale, torch::kFloat64);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    // Gradients are made with their scale; what comes in is the 1 that backward() starts from.
    const variable_list saved = ctx->get_saved_variables();
    const double factor = grads[0].item<double>();
    const auto times = [&](const Tensor& g) { return factor == 1.0 ? g : g * factor; };
    return {times(saved[0]), times(saved[1]), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<PagedSegments>> PagedSegments::Create(const model::ModelConfig& config, kernels::DType kv_dtype,
                                                                     const std::vector<std::int64_t>& segments) {
  std::unique_ptr<PagedSegments> made(new PagedSegments);
  made->num_sequences_ = static_cast<std::int64_t>(segments.size()) - 1;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const std::int64_t size = segments[s + 1] - segments[s];
    made->pages_per_sequence_ = std::max(made->pages_per_sequence_, model::KvPool::PagesFor(size));
    for (std::int64_t i = 0; i < size; ++i) {
      made->sequence_.push_back(static_cast<std::int32_t>(s));
      made->position_.push_back(static_cast<std::int32_t>(i));
    }
  }
  const std::int64_t pages = made->num_sequences_ * made->pages_per_sequence_;
  for (std::int64_t p = 0; p < pages; ++p) made->pages_.push_back(static_cast<std::int32_t>(p));
  model::ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  NIBBLE_ASSIGN_OR_RETURN(made->pool_, model::KvPool::Create(one_layer, kv_dtype, pages));
  made->segments_ = segments;
  return made;
}

kernels::KvRows PagedSegments::rows() const {
  return {.num_rows = static_cast<std::int64_t>(sequence_.size()),
          .sequence = sequence_.data(),
          .position = position_.data(),
          .page_tables = pages_.data(),
          .num_sequences = num_sequences_,
          .pages_per_sequence = pages_per_sequence_};
}

kernels::PackedDenseWeight DenseHead::packed() const {
  return {panels.data_ptr(), served.scalar_type() == torch::kBFloat16 ? kernels::DType::kBF16 : kernels::DType::kF32,
          served.size(0), served.size(1)};
}

Tensor ApplyPagedAttention(const Tensor& q, const Tensor& k, const Tensor& v, const PagedSegments& segments,
                           std::int64_t num_heads, std::int64_t num_kv_heads, Context& context) {
  return PagedAttentionFunction::apply(q, k, v, &segments, num_heads, num_kv_heads, &context);
}

Tensor ApplyEmbedding(const std::vector<std::int32_t>& ids, const Tensor& table, const Tensor& master, Context& context) {
  return EmbeddingFunction::apply(master, table, &ids, &context);
}

Tensor DenseLogits(const Tensor& hidden, const DenseHead& head, Context& context) {
  Tensor logits = torch::empty({hidden.size(0), head.served.size(0)}, torch::kFloat32);
  ThrowIfError(kernels::MatmulDense({.x = ViewOf(hidden), .w = head.packed(), .y = ViewOf(logits)}, context.stream));
  return logits;
}

Tensor ApplyDenseLoss(const Tensor& hidden, const DenseHead& head, const std::vector<std::int32_t>& targets, double scale,
                      double* loss_sum, Context& context) {
  return DenseLossFunction::apply(hidden, head.master, &head, &targets, scale, loss_sum, &context);
}

}  // namespace nibble::trainer
