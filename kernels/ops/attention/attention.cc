#include "kernels/ops/attention/attention.h"

#include <cmath>

#include "kernels/formats/kv_check.h"
#include "kernels/ops/attention/attention_table.h"

namespace nibble::kernels {

absl::Status Attention(const AttentionArgs& args, const Stream& stream) {
  constexpr const char* kOp = "attention";
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  NIBBLE_RETURN_IF_INVALID(CheckKvCache(kOp, args.cache, args.layer));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.num_heads > 0 && args.num_heads % args.cache.num_kv_heads == 0, kOp,
                                     "num_heads above 0, a multiple of the cache's KV heads"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(std::isfinite(args.scale), kOp, "a finite scale"));
  const std::int64_t cols = args.num_heads * args.cache.head_dim;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "q", args.q, args.rows.num_rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "out", args.out, args.rows.num_rows, cols, kFloats));
  // Another tile may still read q when a tile writes out.
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.rows.num_rows == 0 || args.out.data != args.q.data, kOp, "out that does not alias q"));
  if (stream.device == DeviceKind::kCpu) {
    NIBBLE_RETURN_IF_INVALID(CheckKvRows(kOp, args.cache, args.rows, /*all_pages=*/true));
  }
  return Launch(kAttentionTable, args, stream);
}

}  // namespace nibble::kernels
