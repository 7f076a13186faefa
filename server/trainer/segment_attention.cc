#include "server/trainer/segment_attention.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/attention_backward.h"
#include "kernels/ops/attention/kv_store.h"
#include "server/base/status_macros.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Heads {
  std::int64_t kv = 0;     // KV heads
  std::int64_t group = 0;  // query heads per KV head
  std::int64_t dim = 0;

  float scale() const { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))); }
};

// Segments and KV heads of one launch of the backward pass.
struct Part {
  std::size_t segment = 0;
  std::int64_t num_segments = 0;
  std::int64_t head = 0;
  std::int64_t num_heads = 0;
};

// Calls body(part) for segments of at most kForwardRows rows together, and for each KV head of a longer segment. The
// parts have no effect on bits: `cancelled` is called between them, which also shows that the trainer is alive.
template <typename Body>
void ForEachPart(const std::vector<std::int64_t>& segments, std::int64_t kv_heads, Body body) {
  for (std::size_t first = 0; first + 1 < segments.size();) {
    std::size_t end = first + 1;
    while (end + 1 < segments.size() && segments[end + 1] - segments[first] <= kForwardRows) ++end;
    const std::int64_t at_once = segments[end] - segments[first] > kForwardRows ? 1 : kv_heads;
    for (std::int64_t head = 0; head < kv_heads; head += at_once)
      body(Part{first, static_cast<std::int64_t>(end - first), head, at_once});
    first = end;
  }
}

// The result [T, H*d] of `type` and the logsumexp [num_tokens, H]. Overwrites the cache.
std::pair<Tensor, Tensor> Attend(const Tensor& q, const Tensor& k, const Tensor& v, const PagedSegments& segments,
                                 const Heads& heads, torch::ScalarType type, const TrainingContext& context) {
  const std::int64_t num_tokens = segments.num_tokens(), num_heads = heads.kv * heads.group;
  Tensor out = torch::empty(q.sizes(), type);
  out.narrow(0, num_tokens, q.size(0) - num_tokens).zero_();
  Tensor logsumexp = torch::empty({num_tokens, num_heads}, torch::kFloat32);
  for (std::int64_t begin = 0; begin < num_tokens; begin += kForwardRows) {
    ThrowIfCancelled(context.cancelled);
    const std::int64_t count = std::min(kForwardRows, num_tokens - begin);
    const kernels::KvRows rows = segments.Rows(begin, count);
    const auto view = [&](const Tensor& tensor) { return ViewOf(tensor.narrow(0, begin, count)); };
    ThrowIfError(kernels::KvStore({.k = view(k), .v = view(v), .cache = segments.cache(), .layer = 0, .rows = rows},
                                  context.stream));
    ThrowIfError(kernels::Attention({.q = view(q),
                                     .cache = segments.cache(),
                                     .layer = 0,
                                     .rows = rows,
                                     .num_heads = num_heads,
                                     .scale = heads.scale(),
                                     .out = view(out),
                                     .logsumexp = logsumexp.data_ptr<float>() + begin * num_heads},
                                    context.stream));
  }
  return {out, logsumexp};
}

struct SegmentAttentionFunction : torch::autograd::Function<SegmentAttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const PagedSegments* segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                        torch::ScalarType type, torch::ScalarType kept, c10::intrusive_ptr<RecomputedRows>* recomputed,
                        TrainingContext* context) {
    Remember(ctx, "segments", segments);
    Remember(ctx, "context", context);
    ctx->saved_data["heads"] = num_heads;
    ctx->saved_data["kv_heads"] = num_kv_heads;
    const auto [out, logsumexp] =
        Attend(q, k, v, *segments, {num_kv_heads, num_heads / num_kv_heads, q.size(1) / num_heads}, type, *context);
    // A gradient goes straight through the rounding to the cache's type.
    const torch::ScalarType cached = ToTorch(segments->cache().dtype);
    if (kept == torch::kFloat32 && cached != kept) {
      ctx->save_for_backward({q, k.to(cached), v.to(cached)});
    } else {
      const Tensor copy = out.to(kept);
      ctx->save_for_backward({q.to(kept), k.to(kept), v.to(kept), copy, logsumexp});
      if (recomputed != nullptr) {
        *recomputed = c10::make_intrusive<RecomputedRows>([x = copy.detach(), type] { return x.to(type); });
      }
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& segments = Recall<const PagedSegments>(ctx, "segments");
    const auto& context = Recall<const TrainingContext>(ctx, "context");
    const std::int64_t num_heads = ctx->saved_data["heads"].toInt();
    const std::int64_t num_kv_heads = ctx->saved_data["kv_heads"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const Heads heads = {num_kv_heads, num_heads / num_kv_heads, saved[0].size(1) / num_heads};
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    Tensor out, logsumexp;
    std::tie(out, logsumexp) =
        saved.size() == 5 ? std::pair{saved[3], saved[4]} : Attend(q, k, v, segments, heads, q.scalar_type(), context);
    const Tensor grad_out = grads[0].contiguous();
    const Tensor grad_q = torch::empty(q.sizes(), torch::kFloat32), grad_k = torch::empty(k.sizes(), grad_q.options()),
                 grad_v = torch::empty(v.sizes(), grad_q.options());
    const std::int64_t end = segments.num_tokens();
    for (const Tensor& grad : {grad_q, grad_k, grad_v}) grad.narrow(0, end, grad.size(0) - end).zero_();
    ForEachPart(segments.segments(), heads.kv, [&](const Part& part) {
      ThrowIfCancelled(context.cancelled);
      // Columns of the part's KV heads, or of the query heads that read them.
      const auto of = [&](const Tensor& x, std::int64_t cols) {
        return kernels::Columns(ViewOf(x.narrow(0, 0, end)), part.head * cols, part.num_heads * cols);
      };
      const auto kv = [&](const Tensor& x) { return of(x, heads.dim); };
      const auto query = [&](const Tensor& x, std::int64_t cols) { return of(x, heads.group * cols); };
      ThrowIfError(kernels::AttentionBackward({.q = query(q, heads.dim),
                                               .k = kv(k),
                                               .v = kv(v),
                                               .out = query(out, heads.dim),
                                               .grad_out = query(grad_out, heads.dim),
                                               .logsumexp = query(logsumexp, 1),
                                               .segments = segments.segments().data() + part.segment,
                                               .num_segments = part.num_segments,
                                               .num_heads = part.num_heads * heads.group,
                                               .num_kv_heads = part.num_heads,
                                               .scale = heads.scale(),
                                               .grad_q = query(grad_q, heads.dim),
                                               .grad_k = kv(grad_k),
                                               .grad_v = kv(grad_v)},
                                              context.stream));
    });
    return {grad_q, grad_k, grad_v, Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<PagedSegments>> PagedSegments::Create(const model::ModelConfig& config,
                                                                     kernels::DType kv_dtype,
                                                                     const std::vector<std::int64_t>& segments) {
  std::unique_ptr<PagedSegments> made(new PagedSegments);
  made->num_sequences_ = static_cast<std::int64_t>(segments.size()) - 1;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    made->pages_per_sequence_ =
        std::max(made->pages_per_sequence_, model::KvPool::PagesFor(segments[s + 1] - segments[s]));
  }
  // Each segment has only the pages that it needs, so that many short ones beside a long one cost little.
  made->pages_.resize(static_cast<std::size_t>(made->num_sequences_ * made->pages_per_sequence_), -1);
  std::int32_t num_pages = 0;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const std::int64_t size = segments[s + 1] - segments[s];
    auto page = made->pages_.begin() + static_cast<std::int64_t>(s) * made->pages_per_sequence_;
    for (std::int64_t p = 0; p < model::KvPool::PagesFor(size); ++p) *page++ = num_pages++;
    for (std::int64_t i = 0; i < size; ++i) {
      made->sequence_.push_back(static_cast<std::int32_t>(s));
      made->position_.push_back(static_cast<std::int32_t>(i));
    }
  }
  model::ModelConfig one_layer = config;
  one_layer.num_layers = 1;
  NIBBLE_ASSIGN_OR_RETURN(made->pool_, model::KvPool::Create(one_layer, kv_dtype, num_pages));
  made->segments_ = segments;
  return made;
}

kernels::KvRows PagedSegments::Rows(std::int64_t begin, std::int64_t count) const {
  return {.num_rows = count,
          .sequence = sequence_.data() + begin,
          .position = position_.data() + begin,
          .page_tables = pages_.data(),
          .num_sequences = num_sequences_,
          .pages_per_sequence = pages_per_sequence_};
}

Tensor ApplySegmentAttention(const Tensor& q, const Tensor& k, const Tensor& v, const PagedSegments& segments,
                             std::int64_t num_heads, std::int64_t num_kv_heads, TrainingContext& context,
                             torch::ScalarType type, std::optional<torch::ScalarType> kept) {
  return SegmentAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), &segments, num_heads,
                                         num_kv_heads, type, kept.value_or(type), nullptr, &context);
}

FloatInput ApplySegmentAttentionToInput(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const PagedSegments& segments, std::int64_t num_heads,
                                        std::int64_t num_kv_heads, TrainingContext& context, torch::ScalarType type,
                                        torch::ScalarType kept) {
  c10::intrusive_ptr<RecomputedRows> recomputed;
  Tensor out = SegmentAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), &segments, num_heads,
                                               num_kv_heads, type, kept, &recomputed, &context);
  return {std::move(out), std::move(recomputed)};
}

}  // namespace nibble::trainer
