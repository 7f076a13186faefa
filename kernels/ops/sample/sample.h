#pragma once
#include "absl/status/status.h"
#include "kernels/ops/sample/sample_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Draws one token for each row. The weights are w = exp((logit - max) / temperature); candidates are in descending
// order (ties: lower id). A draw takes the first candidate whose running sum of w (f64, in that order) exceeds u times
// the sum over the candidates that the filters left; u = PhiloxUniform(seed, counter) of kernels/philox.h. The filters:
//   top_k  keeps the first k candidates and ties with the k-th
//   top_p  keeps a candidate while the sum before it is below top_p times the sum over the candidates that top_k left
//   min_p  keeps a candidate with w >= min_p
// The first candidate always stays; others with w = 0 never do. top_p without top_k, and a draw without filters, use
// the sum over all V ids in ascending order: blocks of 1024 are summed in f32 (16 virtual lanes and a fixed tree), and
// the blocks' sums in f64.
//   logits  [T, V]   f32
//   params  [T]
//   allowed [T, ceil(V / 32)]  u32; nullptr: all tokens. Token i may be drawn if bit i % 32 of word i / 32 is set; the
//                    logits of the others count as -inf, whatever they hold
//   token   [T]      i32; overwritten; -1 for a row with NaN or +inf, or without a finite logit: the other rows are
//                    still drawn, and the error names the first such row
// Same bits on every path.
// Errors: InvalidArgument (shape; temperature, top_k, top_p or min_p out of range: the message names it; a row without
// a distribution), Unimplemented (no kernel for device).
// Source: nucleus sampling arXiv:1904.09751, min-p arXiv:2407.01082; Philox SC'11. Golden: transformers' warpers.
absl::Status Sample(const SampleArgs& args, const Stream& stream);

}  // namespace nibble::kernels
