// The decoder, written once. Serving instantiates it with direct kernel calls (serving_ops.h), training with autograd
// functions over the same kernels (trainer/): that is how train == serve holds by construction (docs/ARCHITECTURE.md).
//
// Ops gives:
//   Tensor   an activation [T, features]
//   Input    what linears read: rows normed, rounded or quantised once and shared by the linears behind it
//   Tensor Embed()                                   [T, hidden]
//   Tensor RunLayer(layer, h, body)                  calls body(h): training may recompute it (activation checkpointing)
//   void   BeginLayer(layer)                         scratch of the layer before may be reused
//   Input  NormInput(h, layer, Norm)                 rms_norm, prepared for linears
//   Input  PlainInput(x, layer, LinearKind)          prepared for the one linear named
//   Tensor Linear(input, layer, LinearKind)          with bias and adapter where the model has them
//   Tensor Rope(x, num_heads)                        may work in place
//   Tensor Attention(q, k, v, layer)                 causal within each sequence
//   Tensor SiluMul(gate, up)
//   Tensor Add(h, y)                                 the residual stream; may work in place
//   Tensor FinalNorm(h)                              of the rows whose logits are wanted
// Errors are sticky inside Ops: after the first one its calls do nothing, and the caller asks for the status at the end.
#pragma once
#include <cstdint>
#include <utility>

#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

enum class Norm { kInput, kPostAttention };

template <typename Ops>
typename Ops::Tensor DecoderLayer(Ops& ops, const ModelConfig& config, std::int64_t layer, typename Ops::Tensor h) {
  ops.BeginLayer(layer);
  {
    const auto input = ops.NormInput(h, layer, Norm::kInput);
    auto q = ops.Rope(ops.Linear(input, layer, LinearKind::kQ), config.num_heads);
    auto k = ops.Rope(ops.Linear(input, layer, LinearKind::kK), config.num_kv_heads);
    auto v = ops.Linear(input, layer, LinearKind::kV);
    auto attended = ops.Attention(std::move(q), std::move(k), std::move(v), layer);
    const auto mixed = ops.PlainInput(std::move(attended), layer, LinearKind::kO);
    h = ops.Add(std::move(h), ops.Linear(mixed, layer, LinearKind::kO));
  }
  const auto input = ops.NormInput(h, layer, Norm::kPostAttention);
  auto gate = ops.Linear(input, layer, LinearKind::kGate);
  auto up = ops.Linear(input, layer, LinearKind::kUp);
  const auto product = ops.PlainInput(ops.SiluMul(std::move(gate), std::move(up)), layer, LinearKind::kDown);
  return ops.Add(std::move(h), ops.Linear(product, layer, LinearKind::kDown));
}

// Hidden states after the final norm; the head is applied by the caller (rows of logits are large, and training takes
// them in chunks).
template <typename Ops>
typename Ops::Tensor RunDecoder(Ops& ops, const ModelConfig& config) {
  auto h = ops.Embed();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    h = ops.RunLayer(layer, std::move(h), [&](auto x) { return DecoderLayer(ops, config, layer, std::move(x)); });
  }
  return ops.FinalNorm(std::move(h));
}

}  // namespace nibble::model
