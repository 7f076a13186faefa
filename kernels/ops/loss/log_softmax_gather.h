#pragma once
#include "absl/status/status.h"
#include "kernels/ops/loss/log_softmax_gather_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// logprob[t] = logits[t, target[t]] - logsumexp(logits[t]), and the top_n most likely ids of each row.
//   logits       [T, V]      f32
//   target       [T]         i32; -1 gives logprob 0; or null
//   logprob      [T]         f32; null when target is null
//   logsumexp    [T]         f32, or null
//   top_id, top_logprob [T, top_n]   descending, ties to the lower id; null when top_n is 0
// logsumexp = max + log(sum), the sum over 16 virtual lanes of our exp polynomial, then a fixed tree; log by our
// polynomial. A row with NaN or +inf, or without a finite logit, gives NaN and ids of -1. Same bits on every path.
// Errors: InvalidArgument (shape; target out of range: the message has the target; top_n > V), Unimplemented (no kernel
// for device).
// Source: none. Golden: tests/golden/kernels (torch float64).
absl::Status LogSoftmaxGather(const LogSoftmaxGatherArgs& args, const Stream& stream);

}  // namespace nibble::kernels
