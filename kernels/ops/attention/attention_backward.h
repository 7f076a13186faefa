#pragma once
#include "absl/status/status.h"
#include "kernels/ops/attention/attention_backward_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Gradients of causal grouped-query attention of packed rows. Row i of a segment attends to rows 0..i of the same
// segment; query head h reads KV head h / (H / KV). For each head:
// - p[i][j] = Exp(scale * (q[i] . k[j]) - logsumexp[i]) for j <= i, else 0
// - ds[i][j] = p[i][j] * (grad_out[i] . v[j] - grad_out[i] . out[i])
// - grad_q[i] = scale * sum over j of ds[i][j] k[j]
// - grad_k[j] = scale * sum over i of ds[i][j] q[i]; grad_v[j] = sum over i of p[i][j] grad_out[i]
// Every sum is one fused multiply-add chain in ascending order, except that grad_out . out is summed over 16 virtual
// lanes and a fixed tree. The sums of grad_k and grad_v of the heads that share a KV head are then added in order.
//   q, out, grad_out  [T, H * d]   f32 | bf16
//   k, v              [T, KV * d]  f32 | bf16, as the forward pass read them
//   logsumexp         [T, H]       f32, of attention.h
//   segments          [num_segments + 1]: first row of each segment, ascending, then the end of the last
//   grad_q            [T, H * d]   f32; rows outside the segments are not written; must not alias an input
//   grad_k, grad_v    [T, KV * d]  f32; the same
// Requires H % KV == 0. Same bits on every path if the inputs are finite; a NaN or an infinity stays in its segment.
// Memory: 8 * H * d bytes per row of the segments if query heads share KV heads; for each thread, 4 * d bytes per row
// of the longest segment, about 1800 * d bytes for its blocks, and 32 KiB. Errors: InvalidArgument (shape, dtype,
// segments), Unimplemented (no kernel for device), ResourceExhausted. Source: FlashAttention arXiv:2205.14135,
// algorithm 4. Golden: tests/golden/kernels (torch autograd in float64).
absl::Status AttentionBackward(const AttentionBackwardArgs& args, const Stream& stream);

}  // namespace nibble::kernels
