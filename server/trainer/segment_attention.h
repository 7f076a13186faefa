// Causal attention over packed rows, segment by segment: memory and time are those of the segments, whatever stands beside them.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "server/trainer/autograd.h"

namespace nibble::trainer {

// Each token attends to those of its own segment up to itself.
//   q         [T, H*d]   f32 | bf16
//   k, v      [T, KV*d]  as q; query head h reads KV head h / (H / KV)
//   segments  [S+1]      first token of each segment, then their end, which is at most T. Must outlive the graph.
//   result    [T, H*d]   as q; 0 for tokens past the last segment, from which nothing flows back
// Gradients keep q, k, v and the result by reference, and one f32 a query head and token. A segment's bits do not depend on the
// others. Throws StoppedError (AutogradContext::cancelled).
torch::Tensor ApplySegmentAttention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                    const std::vector<std::int64_t>& segments, std::int64_t num_heads, std::int64_t num_kv_heads,
                                    AutogradContext& context);

}  // namespace nibble::trainer
