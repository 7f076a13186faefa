#include "kernels/ops/elementwise/embedding.h"

#include "kernels/check.h"
#include "kernels/ops/elementwise/embedding_table.h"

namespace nibble::kernels {

absl::Status Embedding(const EmbeddingArgs& args, const Stream& stream) {
  constexpr const char* kOp = "embedding";
  static constexpr auto kFloats = {DType::kF32, DType::kBF16};
  const bool is_packed = args.packed.tiles != nullptr;
  NIBBLE_RETURN_IF_INVALID(CheckThat(is_packed != (args.table.data != nullptr), kOp, "either table or packed"));
  const std::int64_t vocabulary = is_packed ? args.packed.rows : args.table.rows;
  const std::int64_t cols = is_packed ? args.packed.cols : args.table.cols;
  if (is_packed) {
    NIBBLE_RETURN_IF_INVALID(CheckThat(args.packed.scale != nullptr && args.packed.padded_k == Int8PaddedK(cols), kOp,
                                       "packed with scales and padded_k of formats/int8.h"));
  } else {
    NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "table", args.table, vocabulary, cols, kFloats));
  }
  NIBBLE_RETURN_IF_INVALID(
      CheckThat(args.num_ids >= 0 && (args.num_ids == 0 || args.ids != nullptr), kOp, "num_ids >= 0 and ids not null"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "out", args.out, args.num_ids, cols, kFloats));
  if (stream.device == DeviceKind::kCpu) {
    for (std::int64_t t = 0; t < args.num_ids; ++t) {
      if (args.ids[t] < 0 || args.ids[t] >= vocabulary) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": ids[", t, "] is ", args.ids[t], ", wanted 0 to ", vocabulary - 1));
      }
    }
  }
  return Launch(kEmbeddingTable, args, stream);
}

}  // namespace nibble::kernels
