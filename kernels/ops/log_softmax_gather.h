#pragma once
#include "absl/status/status.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct LogSoftmaxGatherArgs {
  ConstMatrix logits;
  const std::int32_t* target = nullptr;
  float* logprob = nullptr;
  float* logsumexp = nullptr;
  std::int64_t top_n = 0;
  std::int32_t* top_id = nullptr;
  float* top_logprob = nullptr;
};

// logprob[t] = logits[t, target[t]] - logsumexp(logits[t]), and the top_n most likely ids of each row.
//   logits       [T, V]      f32
//   target       [T]         i32; -1 gives logprob 0; or null
//   logprob      [T]         f32, or null when target is
//   logsumexp    [T]         f32, or null
//   top_id, top_logprob [T, top_n]   descending, ties to the lower id; null when top_n is 0
// logsumexp = max + log(sum), the sum over 16 virtual lanes of our exp polynomial, then a fixed tree; log by our polynomial.
// Same bits on every path.
// Errors: InvalidArgument (shape, target out of range: named, top_n > V), Unimplemented (no kernel for device).
// Source: none. Golden: tests/golden/kernels (torch float64).
absl::Status LogSoftmaxGather(const LogSoftmaxGatherArgs& args, const Stream& stream);

}  // namespace nibble::kernels
