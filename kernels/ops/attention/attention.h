#pragma once
#include "absl/status/status.h"
#include "kernels/ops/attention/attention_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Causal grouped-query attention of T rows, each over keys 0..position of its own sequence in the paged cache: whole
// prefill, chunked prefill and decode are the same op. Every output row is computed by the same sequence of operations:
// keys in pages of kKvPageTokens from position 0 (masked keys score -inf); a score is one fused multiply-add chain over
// the dimensions, times scale; a page's exponentials (our polynomial) are taken against the running maximum, summed
// over 16 virtual lanes and a fixed tree; the output is one chain over the keys in order (masked values are not used),
// rescaled once per page and divided by the sum at the end; logsumexp = maximum + log(sum).
//   q          [T, H * d]   f32 | bf16, after rope
//   out        [T, H * d]   f32 | bf16; overwritten; must not alias q
//   logsumexp  [T, H]       f32, or null; for the backward pass
// Requires H % KV == 0 and that kv_store has written every position up to each row's. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, page or position out of range), Unimplemented, Internal.
// Source: FlashAttention arXiv:2205.14135 (online softmax). Golden: tests/golden/kernels (torch SDPA in float64).
absl::Status Attention(const AttentionArgs& args, const Stream& stream);

}  // namespace nibble::kernels
