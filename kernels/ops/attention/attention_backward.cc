#include "kernels/ops/attention/attention_backward.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/ops/attention/attention_backward_table.h"

namespace nibble::kernels {

absl::Status AttentionBackward(const AttentionBackwardArgs& args, const Stream& stream) {
  constexpr const char* kOp = "attention_backward";
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.num_kv_heads > 0 && args.num_heads > 0 && args.num_heads % args.num_kv_heads == 0, kOp,
                "num_heads above 0, a multiple of num_kv_heads"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(std::isfinite(args.scale), kOp, "a finite scale"));
  const std::int64_t rows = args.q.rows;
  const std::int64_t cols = args.q.cols;
  NIBBLE_RETURN_IF_INVALID(CheckThat(cols % args.num_heads == 0, kOp, "q with a multiple of num_heads columns"));
  const std::int64_t kv_cols = cols / args.num_heads * args.num_kv_heads;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "q", args.q, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "k", args.k, rows, kv_cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "v", args.v, rows, kv_cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "out", args.out, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_out", args.grad_out, rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "logsumexp", args.logsumexp, rows, args.num_heads, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_q", args.grad_q, rows, cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_k", args.grad_k, rows, kv_cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "grad_v", args.grad_v, rows, kv_cols, {DType::kF32}));
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.num_segments >= 0 && args.segments != nullptr, kOp, "segments, with the end of the last one"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.segments[0] >= 0, kOp, "segments from row 0 on"));
  for (std::int64_t s = 0; s < args.num_segments; ++s) {
    NIBBLE_RETURN_IF_INVALID(CheckThat(args.segments[s] <= args.segments[s + 1], kOp, "segments in ascending order"));
  }
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.segments[args.num_segments] <= rows, kOp, "segments within the rows of q"));
  return Launch(kAttentionBackwardTable, args, stream);
}

}  // namespace nibble::kernels
