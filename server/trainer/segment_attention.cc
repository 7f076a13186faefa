#include "server/trainer/segment_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/formats/int8.h"
#include "kernels/ops/attention/attention.h"
#include "kernels/ops/attention/kv_store.h"
#include "server/base/status_macros.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Segments are padded to a multiple of this: for torch's bf16 attention, oneDNN keeps a primitive for every new shape,
// and examples of all lengths would always make new ones. It is also the smallest block of queries of torch's kernel,
// so that padding is nearly free.
constexpr std::int64_t kSegmentQuantum = 32;

struct Heads {
  std::int64_t kv = 0;     // KV heads
  std::int64_t group = 0;  // query heads per KV head
  std::int64_t dim = 0;
};

struct Segment {
  std::int64_t begin = 0;   // first token
  std::int64_t size = 0;    // tokens
  std::int64_t padded = 0;  // the same, padded
};

template <typename Body>
void ForEachSegment(const std::vector<std::int64_t>& segments, Body body) {
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const std::int64_t size = segments[s + 1] - segments[s];
    if (size == 0) continue;
    body(Segment{segments[s], size, kernels::RoundUp(size, kSegmentQuantum)});
  }
}

// Rows [begin, begin + padded) of x as [KV, group, padded, d]. For k and v (`shared`), every head appears once for each
// query head of its group. Returns a view if x has all these rows. The rows past the segment then belong to other
// tokens. Causality hides their keys, but not the gradients of their queries: `zero_padding` makes the rows past the
// segment 0, in a copy.
Tensor Rows(const Tensor& x, const Segment& segment, const Heads& heads, bool shared, bool zero_padding = false) {
  const std::int64_t stride = x.size(1);
  const std::vector<std::int64_t> sizes = {heads.kv, heads.group, segment.padded, heads.dim};
  const std::vector<std::int64_t> strides = {shared ? heads.dim : heads.group * heads.dim, shared ? 0 : heads.dim,
                                             stride, 1};
  const bool padded = segment.padded != segment.size;
  if (!padded || (!zero_padding && segment.begin + segment.padded <= x.size(0))) {
    return x.as_strided(sizes, strides, x.storage_offset() + segment.begin * stride);
  }
  Tensor copy = torch::zeros({segment.padded, stride}, x.options());
  copy.narrow(0, 0, segment.size).copy_(x.narrow(0, segment.begin, segment.size));
  return copy.as_strided(sizes, strides);
}

// The reverse of Rows: stores `from`, which has n KV heads from `first` on, in the segment's rows of x. `from` is
// [n, group, padded, d] for query heads, [n, padded, d] for KV heads.
void StoreQueryHeads(const Tensor& from, const Segment& segment, const Heads& heads, std::int64_t first,
                     const Tensor& x) {
  x.narrow(0, segment.begin, segment.size)
      .view({segment.size, heads.kv, heads.group, heads.dim})
      .narrow(1, first, from.size(0))
      .copy_(from.narrow(2, 0, segment.size).permute({2, 0, 1, 3}));
}
void StoreKvHeads(const Tensor& from, const Segment& segment, const Heads& heads, std::int64_t first, const Tensor& x) {
  x.narrow(0, segment.begin, segment.size)
      .view({segment.size, heads.kv, heads.dim})
      .narrow(1, first, from.size(0))
      .copy_(from.narrow(1, 0, segment.size).permute({1, 0, 2}));
}

// log(sum of exp(scores)) of a segment's queries as [KV, group, padded], from [num_tokens, H]. The rows past the
// segment have probabilities of 0.
Tensor PaddedLogSumExp(const Tensor& all, const Segment& segment, const Heads& heads) {
  constexpr float kNoProbability = 1e30f;  // not infinity, which torch's kernel need not support
  Tensor sums = torch::full({segment.padded, heads.kv, heads.group}, kNoProbability, torch::kFloat32);
  sums.narrow(0, 0, segment.size)
      .view({segment.size, heads.kv * heads.group})
      .copy_(all.narrow(0, segment.begin, segment.size));
  return sums.permute({1, 2, 0});
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
                                     .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(heads.dim))),
                                     .out = view(out),
                                     .logsumexp = logsumexp.data_ptr<float>() + begin * num_heads},
                                    context.stream));
  }
  return {out, logsumexp};
}

struct SegmentAttentionFunction : torch::autograd::Function<SegmentAttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const PagedSegments* segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                        torch::ScalarType type, TrainingContext* context) {
    Remember(ctx, "segments", segments);
    Remember(ctx, "context", context);
    ctx->saved_data["heads"] = num_heads;
    ctx->saved_data["kv_heads"] = num_kv_heads;
    const auto [out, logsumexp] =
        Attend(q, k, v, *segments, {num_kv_heads, num_heads / num_kv_heads, q.size(1) / num_heads}, type, *context);
    // A gradient goes straight through the rounding to the cache's type.
    const torch::ScalarType cached = ToTorch(segments->cache().dtype);
    if (type == torch::kFloat32 && cached != type) {
      ctx->save_for_backward({q, k.to(cached), v.to(cached)});
    } else {
      ctx->save_for_backward({q.to(type), k.to(type), v.to(type), out, logsumexp});
    }
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& segments = Recall<const PagedSegments>(ctx, "segments");
    const auto& context = Recall<const TrainingContext>(ctx, "context");
    const std::int64_t num_heads = ctx->saved_data["heads"].toInt();
    const std::int64_t num_kv_heads = ctx->saved_data["kv_heads"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    // The scratch has the type of products of the backward pass (BackwardType): f32 on a CPU on which torch's bf16
    // products are slow.
    const bool widen = context.scratch.defined() && context.scratch.scalar_type() == torch::kFloat32;
    const Tensor q = widen ? saved[0].to(torch::kFloat32) : saved[0];
    const Tensor k = saved[1].to(q.scalar_type()), v = saved[2].to(q.scalar_type());
    const Heads heads = {num_kv_heads, num_heads / num_kv_heads, q.size(1) / num_heads};
    const auto [out, logsumexp] = saved.size() == 5 ? std::pair{saved[3].to(q.scalar_type()), saved[4]}
                                                    : Attend(q, k, v, segments, heads, q.scalar_type(), context);
    const Tensor g = grads[0].contiguous().to(q.scalar_type());
    Tensor grad_q = torch::empty(q.sizes(), torch::kFloat32), grad_k = torch::empty(k.sizes(), torch::kFloat32),
           grad_v = torch::empty(v.sizes(), torch::kFloat32);
    const std::int64_t end = segments.num_tokens();
    for (const Tensor& grad : {grad_q, grad_k, grad_v}) grad.narrow(0, end, q.size(0) - end).zero_();
    ForEachSegment(segments.segments(), [&](const Segment& segment) {
      const Tensor rows_g = Rows(g, segment, heads, false, /*zero_padding=*/true),
                   rows_q = Rows(q, segment, heads, false), rows_k = Rows(k, segment, heads, true),
                   rows_v = Rows(v, segment, heads, true), rows_out = Rows(out, segment, heads, false),
                   sums = PaddedLogSumExp(logsumexp, segment, heads);
      // A long segment takes seconds. One KV head at a time gives the same bits, and `cancelled` is called in between,
      // which also shows that the trainer is alive.
      const std::int64_t at_once = segment.size > kForwardRows ? 1 : heads.kv;
      for (std::int64_t head = 0; head < heads.kv; head += at_once) {
        ThrowIfCancelled(context.cancelled);
        const auto of = [&](const Tensor& rows) { return rows.narrow(0, head, at_once); };
        const auto [made_q, made_k, made_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            of(rows_g), of(rows_q), of(rows_k), of(rows_v), of(rows_out), of(sums), 0.0, /*is_causal=*/true);
        StoreQueryHeads(made_q, segment, heads, head, grad_q);
        StoreKvHeads(made_k.sum(1), segment, heads, head, grad_k);
        StoreKvHeads(made_v.sum(1), segment, heads, head, grad_v);
      }
    });
    return {grad_q, grad_k, grad_v, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
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
                             torch::ScalarType type) {
  return SegmentAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), &segments, num_heads,
                                         num_kv_heads, type, &context);
}

}  // namespace nibble::trainer
