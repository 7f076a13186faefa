#pragma once
#include "absl/status/status.h"
#include "kernels/ops/elementwise/embedding_launch.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// out[t] = table[ids[t]], widened or rounded to out's dtype; int8: rn_out(float(code) * scale).
//   ids    [T]      i32, 0 <= id < V
//   table  [V, K]   f32 | bf16, or packed int8 (formats/int8.h)
//   out    [T, K]   f32 | bf16; overwritten
// Errors: InvalidArgument (shape, dtype, id out of range: the message has the id), Unimplemented (no kernel for
// device).
// Source: none. Test: equal to indexing.
absl::Status Embedding(const EmbeddingArgs& args, const Stream& stream);

}  // namespace nibble::kernels
