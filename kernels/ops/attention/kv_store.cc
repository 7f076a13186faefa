#include "kernels/ops/attention/kv_store.h"

#include "kernels/formats/kv_check.h"
#include "kernels/ops/attention/kv_store_table.h"

namespace nibble::kernels {

absl::Status KvStore(const KvStoreArgs& args, const Stream& stream) {
  constexpr const char* kOp = "kv_store";
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  NIBBLE_RETURN_IF_INVALID(CheckKvCache(kOp, args.cache, args.layer));
  const std::int64_t cols = args.cache.num_kv_heads * args.cache.head_dim;
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "k", args.k, args.rows.num_rows, cols, kFloats));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "v", args.v, args.rows.num_rows, cols, kFloats));
  if (stream.device == DeviceKind::kCpu) {
    NIBBLE_RETURN_IF_INVALID(CheckKvRows(kOp, args.cache, args.rows, /*all_pages=*/false));
  }
  return Launch(kKvStoreTable, args, stream);
}

}  // namespace nibble::kernels
