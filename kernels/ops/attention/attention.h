#pragma once
#include "absl/status/status.h"
#include "kernels/ops/attention/attention_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Causal grouped-query attention of T rows, each over keys 0..position of its own sequence in the paged cache. Whole
// prefill, chunked prefill and decode are the same op: the operations of an output row do not depend on the other rows.
// - Keys are visited in pages of kKvPageTokens from position 0. Masked keys score -inf.
// - A score is one fused multiply-add chain over the dimensions, times scale.
// - The exponentials of a page (our polynomial) are taken relative to the running maximum of the scores. They are
//   summed over 16 virtual lanes and a fixed tree.
// - The output is one chain over the keys in order, without masked values. The chain is rescaled once per page and
//   divided by the sum at the end.
// - logsumexp = maximum + log(sum).
//   q          [T, H * d]   f32 | bf16, after rope
//   out        [T, H * d]   f32 | bf16; overwritten; must not alias q
//   logsumexp  [T, H]       f32, or null; for the backward pass
// Requires H % KV == 0 and that kv_store has written every position up to each row's. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, page or position out of range), Unimplemented, Internal.
// Source: FlashAttention arXiv:2205.14135 (online softmax). Golden: tests/golden/kernels (torch SDPA in float64).
absl::Status Attention(const AttentionArgs& args, const Stream& stream);

}  // namespace nibble::kernels
