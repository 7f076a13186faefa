// The decoder, written once. Serving instantiates it with direct kernel calls (serving_ops.h), training with autograd
// functions over the same kernels (trainer/): so train == serve holds by construction (docs/ARCHITECTURE.md).
//
// Ops provides:
//   Tensor   an activation [T, features]; a handle, cheap to copy
//   Input    input of linears: rows normalized, rounded or quantized once, shared by its readers; cheap to copy
//   Tensor Embed()                                   [T, hidden]
//   Tensor RunLayer(layer, h, body)                  calls body(h): training may compute it again (checkpointing)
//   void   BeginLayer(layer)                         scratch of the previous layer may be reused
//   Input  NormInput(x, layer, Norm, LinearKind)     rms_norm, prepared for the linear and those that share its input
//   Input  PlainInput(x, layer, LinearKind)          prepared for the named linear, without a norm
//   Tensor Linear(input, layer, LinearKind)          with bias and adapter where the model has them
//   Tensor NormRows(x, layer, Norm)                  rms_norm that other norms follow: not prepared for linears
//   Tensor NormHeads(x, layer, Norm, num_heads)      rms_norm of each head separately; may work in place
//   Tensor Rope(x, num_heads)                        may work in place
//   auto   Attention(q, k, v, layer)                 causal within each sequence
//   auto   Gated(gate, up)                           act(gate) * up, act from the config; may work in place
//   Tensor Add(h, y)                                 the residual stream; may work in place
//   Tensor FinalNorm(h)                              serving: only of the rows whose logits are wanted
// Attention and Gated return a type that NormInput and PlainInput take. No call returns an error. In ServingOps, errors
// are sticky: after the first error, calls do nothing, and the caller checks the status at the end. The operations of
// training throw.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// The linears that read the output of `norm` directly. `first`: the linear for which the norm is computed; if the norm
// is that of a block, `first` stands for all linears of the block. `first` must outlive the result.
inline std::span<const LinearKind> ReadersOf(Norm norm, const LinearKind& first) {
  static constexpr LinearKind kOfInput[] = {LinearKind::kQ, LinearKind::kK, LinearKind::kV};
  static constexpr LinearKind kOfPostAttention[] = {LinearKind::kGate, LinearKind::kUp};
  switch (norm) {
    case Norm::kInput: return kOfInput;
    case Norm::kPostAttention: return kOfPostAttention;
    default: return {&first, 1};
  }
}

// For o_proj and down_proj, whose input is not a block's input: returns whether a norm stands directly before the
// linear, and sets *norm to that norm.
inline bool HasNormRightBefore(const ModelConfig& config, LinearKind kind, Norm* norm) {
  *norm = HasNorm(config, NormBefore(kind)) ? NormBefore(kind)
          : kind == LinearKind::kO          ? Norm::kAttentionSub
                                            : Norm::kFfnSub;
  return HasNorm(config, *norm);
}

// The inputs of one block's linears. With a norm before every linear, each linear has its own input; otherwise all
// share one.
template <typename Ops>
class BlockInput {
 public:
  // first: the block's first linear; stands for all of the block's linears when they share their input.
  BlockInput(Ops& ops, const ModelConfig& config, std::int64_t layer, const typename Ops::Tensor& h, Norm norm,
             LinearKind first)
      : ops_(ops), layer_(layer), each_(HasNorm(config, NormBefore(first))) {
    if (!each_) {
      shared_ = ops_.NormInput(h, layer_, norm, first);
    } else {
      rows_ = HasNorm(config, norm) ? ops_.NormRows(h, layer_, norm) : h;
    }
  }
  typename Ops::Input For(LinearKind kind) const {
    return each_ ? ops_.NormInput(rows_, layer_, NormBefore(kind), kind) : shared_;
  }

 private:
  Ops& ops_;
  const std::int64_t layer_;
  const bool each_;
  typename Ops::Input shared_{};
  typename Ops::Tensor rows_{};
};

template <typename Ops>
typename Ops::Tensor DecoderLayer(Ops& ops, const ModelConfig& config, std::int64_t layer, typename Ops::Tensor h) {
  const auto input_of = [&](auto x, LinearKind kind) {
    Norm norm;
    return HasNormRightBefore(config, kind, &norm) ? ops.NormInput(x, layer, norm, kind)
                                                   : ops.PlainInput(x, layer, kind);
  };
  ops.BeginLayer(layer);
  {
    const BlockInput<Ops> input(ops, config, layer, h, Norm::kInput, LinearKind::kQ);
    auto q = ops.Linear(input.For(LinearKind::kQ), layer, LinearKind::kQ);
    auto k = ops.Linear(input.For(LinearKind::kK), layer, LinearKind::kK);
    auto v = ops.Linear(input.For(LinearKind::kV), layer, LinearKind::kV);
    if (config.qk_norm) {
      q = ops.NormHeads(std::move(q), layer, Norm::kQHead, config.num_heads);
      k = ops.NormHeads(std::move(k), layer, Norm::kKHead, config.num_kv_heads);
    }
    q = ops.Rope(std::move(q), config.num_heads);
    k = ops.Rope(std::move(k), config.num_kv_heads);
    const auto mixed = input_of(ops.Attention(std::move(q), std::move(k), std::move(v), layer), LinearKind::kO);
    h = ops.Add(std::move(h), ops.Linear(mixed, layer, LinearKind::kO));
  }
  const BlockInput<Ops> input(ops, config, layer, h, Norm::kPostAttention, LinearKind::kGate);
  auto gate = ops.Linear(input.For(LinearKind::kGate), layer, LinearKind::kGate);
  auto up = ops.Linear(input.For(LinearKind::kUp), layer, LinearKind::kUp);
  const auto product = input_of(ops.Gated(std::move(gate), std::move(up)), LinearKind::kDown);
  return ops.Add(std::move(h), ops.Linear(product, layer, LinearKind::kDown));
}

// Returns hidden states after the final norm. The caller applies the head (rows of logits are large, and training takes
// them in chunks).
template <typename Ops>
typename Ops::Tensor RunDecoder(Ops& ops, const ModelConfig& config) {
  auto h = ops.Embed();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    // Captures `layer` by value: training runs the layer again in the backward pass, after this loop.
    h = ops.RunLayer(layer, std::move(h),
                     [&ops, &config, layer](auto x) { return DecoderLayer(ops, config, layer, std::move(x)); });
  }
  return ops.FinalNorm(std::move(h));
}

}  // namespace nibble::model
