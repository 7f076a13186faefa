#include "kernels/ops/attention/rope.h"

#include "kernels/check.h"
#include "kernels/math.h"
#include "kernels/ops/attention/rope_table.h"

namespace nibble::kernels {

void FillRopeTable(const float* inv_freq, std::int64_t half_dim, std::int64_t first_position,
                   std::int64_t num_positions, float* cos, float* sin) {
  for (std::int64_t p = 0; p < num_positions; ++p) {
    for (std::int64_t i = 0; i < half_dim; ++i) {
      const float angle = static_cast<float>(first_position + p) * inv_freq[i];
      double s = 0;
      double c = 0;
      SinCos(static_cast<double>(angle), &s, &c);
      cos[p * half_dim + i] = static_cast<float>(c);
      sin[p * half_dim + i] = static_cast<float>(s);
    }
  }
}

absl::Status Rope(const RopeArgs& args, const Stream& stream) {
  constexpr const char* kOp = "rope";
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.num_heads > 0 && args.x.cols % args.num_heads == 0, kOp,
                                     "num_heads above 0 that divides the columns of x"));
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.x.cols / args.num_heads % 2 == 0, kOp, "an even head size"));
  if (args.x.rows == 0 || args.x.cols == 0) return absl::OkStatus();
  NIBBLE_RETURN_IF_INVALID(CheckThat(args.position != nullptr && args.cos != nullptr && args.sin != nullptr, kOp,
                                     "position, cos and sin not null"));
  if (stream.device == DeviceKind::kCpu) {
    for (std::int64_t r = 0; r < args.x.rows; ++r) {
      if (args.position[r] < 0 || args.position[r] >= args.table_positions) {
        return absl::InvalidArgumentError(
            absl::StrCat(kOp, ": position[", r, "] is ", args.position[r], ", wanted 0 to ", args.table_positions - 1));
      }
    }
  }
  return Launch(kRopeTable, args, stream);
}

}  // namespace nibble::kernels
