#include "server/trainer/segment_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/autograd.h>
#include <torch/torch.h>

#include <tuple>

#include "kernels/formats/int8.h"
#include "server/trainer/saved_address.h"
#include "server/trainer/torch_bridge.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Context = nibble::trainer::AutogradContext;

// Segments are padded to a multiple of this: oneDNN, under torch's bf16 attention, keeps a primitive for every shape that it meets, and
// examples of all lengths would make new ones for ever. Also the smallest block of queries of torch's kernel, so that padding is
// nearly free.
constexpr std::int64_t kSegmentQuantum = 32;

struct Heads {
  std::int64_t kv = 0;     // KV heads
  std::int64_t group = 0;  // query heads that share one
  std::int64_t dim = 0;
};

struct Segment {
  std::int64_t begin = 0;   // first token
  std::int64_t size = 0;    // tokens
  std::int64_t padded = 0;  // the same, padded
  std::int64_t place = 0;   // sum of the padded sizes before it
};

std::int64_t Padded(std::int64_t size) { return kernels::RoundUp(size, kSegmentQuantum); }

std::int64_t PaddedSize(const std::vector<std::int64_t>& segments) {
  std::int64_t total = 0;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) total += Padded(segments[s + 1] - segments[s]);
  return total;
}

template <typename Body>
void ForEachSegment(const std::vector<std::int64_t>& segments, const Context& context, Body body) {
  std::int64_t place = 0;
  for (std::size_t s = 0; s + 1 < segments.size(); ++s) {
    const std::int64_t size = segments[s + 1] - segments[s];
    if (size == 0) continue;
    ThrowIfCancelled(context.cancelled);
    body(Segment{segments[s], size, Padded(size), place});
    place += Padded(size);
  }
}

// Rows [begin, begin + padded) of x as [KV, group, padded, d]; of k and v (`shared`) every head stands once for each query head of its
// group. Not a copy where x has these rows: those past the segment are of other tokens, and causality hides their keys. The gradients of
// their queries are another matter: with `zero_padding` they are 0.
Tensor Rows(const Tensor& x, const Segment& segment, const Heads& heads, bool shared, bool zero_padding = false) {
  const std::int64_t stride = x.size(1);
  const std::vector<std::int64_t> sizes = {heads.kv, heads.group, segment.padded, heads.dim};
  const std::vector<std::int64_t> strides = {shared ? heads.dim : heads.group * heads.dim, shared ? 0 : heads.dim, stride, 1};
  const bool padded = segment.padded != segment.size;
  if (!padded || (!zero_padding && segment.begin + segment.padded <= x.size(0))) {
    return x.as_strided(sizes, strides, x.storage_offset() + segment.begin * stride);
  }
  Tensor copy = torch::zeros({segment.padded, stride}, x.options());
  copy.narrow(0, 0, segment.size).copy_(x.narrow(0, segment.begin, segment.size));
  return copy.as_strided(sizes, strides);
}

// The other way: [KV, group, padded, d] (query heads) or [KV, padded, d] into the segment's rows of x.
void StoreQueryHeads(const Tensor& from, const Segment& segment, const Heads& heads, const Tensor& x) {
  x.narrow(0, segment.begin, segment.size)
      .view({segment.size, heads.kv, heads.group, heads.dim})
      .copy_(from.narrow(2, 0, segment.size).permute({2, 0, 1, 3}));
}
void StoreKvHeads(const Tensor& from, const Segment& segment, const Heads& heads, const Tensor& x) {
  x.narrow(0, segment.begin, segment.size)
      .view({segment.size, heads.kv, heads.dim})
      .copy_(from.narrow(1, 0, segment.size).permute({1, 0, 2}));
}

struct SegmentAttentionFunction : torch::autograd::Function<SegmentAttentionFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::vector<std::int64_t>* segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                        Context* context) {
    Remember(ctx, "segments", segments);
    Remember(ctx, "context", context);
    ctx->saved_data["heads"] = num_heads;
    ctx->saved_data["kv_heads"] = num_kv_heads;
    const Heads heads = {num_kv_heads, num_heads / num_kv_heads, q.size(1) / num_heads};
    Tensor out = torch::empty_like(q);
    out.narrow(0, segments->back(), q.size(0) - segments->back()).zero_();
    // Of padded queries too: the backward pass makes their probabilities again, and they must be finite.
    Tensor logsumexp = torch::empty({PaddedSize(*segments), num_heads}, torch::kFloat32);
    ForEachSegment(*segments, *context, [&](const Segment& segment) {
      const auto [rows, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
          Rows(q, segment, heads, false), Rows(k, segment, heads, true), Rows(v, segment, heads, true), 0.0, /*is_causal=*/true);
      StoreQueryHeads(rows, segment, heads, out);
      LogSumExp(logsumexp, segment, heads).copy_(sums);
    });
    ctx->save_for_backward({q, k, v, out, logsumexp});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& segments = Recall<const std::vector<std::int64_t>>(ctx, "segments");
    const auto& context = Recall<const Context>(ctx, "context");
    const std::int64_t num_heads = ctx->saved_data["heads"].toInt();
    const std::int64_t num_kv_heads = ctx->saved_data["kv_heads"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &logsumexp = saved[4];
    const Tensor g = grads[0].contiguous();
    const Heads heads = {num_kv_heads, num_heads / num_kv_heads, q.size(1) / num_heads};
    Tensor grad_q = torch::empty_like(q), grad_k = torch::empty_like(k), grad_v = torch::empty_like(v);
    for (const Tensor& grad : {grad_q, grad_k, grad_v}) grad.narrow(0, segments.back(), q.size(0) - segments.back()).zero_();
    ForEachSegment(segments, context, [&](const Segment& segment) {
      const auto [rows_q, rows_k, rows_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          Rows(g, segment, heads, false, /*zero_padding=*/true), Rows(q, segment, heads, false), Rows(k, segment, heads, true),
          Rows(v, segment, heads, true), Rows(out, segment, heads, false), LogSumExp(logsumexp, segment, heads), 0.0,
          /*is_causal=*/true);
      StoreQueryHeads(rows_q, segment, heads, grad_q);
      StoreKvHeads(rows_k.sum(1), segment, heads, grad_k);
      StoreKvHeads(rows_v.sum(1), segment, heads, grad_v);
    });
    return {grad_q, grad_k, grad_v, Tensor(), Tensor(), Tensor(), Tensor()};
  }

 private:
  // [KV, group, padded]
  static Tensor LogSumExp(const Tensor& all, const Segment& segment, const Heads& heads) {
    return all.narrow(0, segment.place, segment.padded).view({segment.padded, heads.kv, heads.group}).permute({1, 2, 0});
  }
};

}  // namespace

Tensor ApplySegmentAttention(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<std::int64_t>& segments,
                             std::int64_t num_heads, std::int64_t num_kv_heads, Context& context) {
  return SegmentAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), &segments, num_heads, num_kv_heads, &context);
}

}  // namespace nibble::trainer
