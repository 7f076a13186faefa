#pragma once
#include "absl/status/status.h"
#include "kernels/ops/attention/rope_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Fills cos and sin [num_positions, head_dim / 2] for the angles float(position) * inv_freq[i], each rounded to f32 as
// in transformers. Sine and cosine are our own polynomials in f64, which give the same bits on every machine.
//   inv_freq  [head_dim / 2]   f32
void FillRopeTable(const float* inv_freq, std::int64_t half_dim, std::int64_t first_position,
                   std::int64_t num_positions, float* cos, float* sin);

// Rotates each head of x in place, by pairs from its two halves: (a, b) = (x[i], x[i + d/2]) becomes
// (a*cos - b*sin, b*cos + a*sin), computed as fmaf(-b, sin, a*cos) and fmaf(a, sin, b*cos) in f32, then rounded to x's
// dtype. `backward` uses -sin.
//   x         [T, H * d]    f32 | bf16; overwritten
//   position  [T]           i32, 0 <= position < table_positions
//   cos, sin  [table_positions, d / 2]   f32 (FillRopeTable)
// Requires d even. Same bits on every path.
// Errors: InvalidArgument (shape, dtype, position), Unimplemented (no kernel for device), Internal (launch).
// Source: RoFormer arXiv:2104.09864; layout of transformers' rotate_half. Golden: tests/golden/kernels (transformers).
absl::Status Rope(const RopeArgs& args, const Stream& stream);

}  // namespace nibble::kernels
