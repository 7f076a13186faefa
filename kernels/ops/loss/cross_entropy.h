#pragma once
#include "absl/status/status.h"
#include "kernels/ops/loss/cross_entropy_launch.h"

namespace nibble::kernels {

// loss[t] = logsumexp(logits[t]) - logits[t, target[t]]. The gradient overwrites the logits:
// logits[t, v] = rn((exp(logits[t, v] - logsumexp) - [v == target[t]]) * grad_scale), in f32.
//   logits  [T, V]   f32 | bf16; overwritten by the gradient of grad_scale * sum(loss)
//   target  [T]      i32, 0 <= target < V
//   loss    [T]      f32; overwritten
// logsumexp as in log_softmax_gather: 16 virtual lanes, a fixed tree, our exp and log. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, target out of range: the message has the target), Unimplemented (no kernel for
// device).
// Source: llm.c's fused_classifier for the idea of writing gradients over logits. Test: against autograd's formula in
// f64.
absl::Status CrossEntropy(const CrossEntropyArgs& args, const Stream& stream);

}  // namespace nibble::kernels
