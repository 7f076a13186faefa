#include "kernels/ops/matmul/matmul_library.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/ops/matmul/matmul_library_table.h"

namespace nibble::kernels {
namespace {

template <typename T>
void AddBias(const float* bias, const Matrix& y, const Stream& stream) {
  stream.ParallelFor(y.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* out = y.Row<T>(row);
      for (std::int64_t n = 0; n < y.cols; ++n) out[n] = RoundTo<T>(ToFloat(out[n]) + bias[n]);
    }
  });
}

}  // namespace

absl::Status MatmulLibrary(const MatmulLibraryArgs& args, const Stream& stream) {
  constexpr const char* kOp = "matmul_library";
  const std::int64_t rows = args.x.rows;
  const bool cpu = stream.device == DeviceKind::kCpu;
  NIBBLE_RETURN_IF_INVALID(CheckThat(rows >= 0 && args.x.cols >= 0 && args.w.rows >= 0, kOp, "sizes of x and w >= 0"));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "x", args.x, rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "w", args.w, args.w.rows, args.x.cols, {DType::kF32, DType::kBF16}));
  NIBBLE_RETURN_IF_INVALID(CheckMatrix(kOp, "y", args.y, rows, args.w.rows, {DType::kF32, DType::kBF16}));
  if (cpu && stream.library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(kOp, ": the stream has no library for dense products"));
  }
  if (rows == 0 || args.w.rows == 0) return absl::OkStatus();
  if (!cpu) return Launch(kMatmulLibraryTable, args, stream);
  if (args.x.cols > 0) {
    if (stream.launches != nullptr) stream.launches->Add(stream.library->kernel_name());
    NIBBLE_RETURN_IF_INVALID(stream.library->Matmul(args.x, args.w, args.y, args.accumulate, stream));
  } else if (!args.accumulate) {  // not by the library: libraries differ where K is 0
    auto* const y = static_cast<char*>(args.y.data);
    const std::int64_t element_bytes = SizeOf(args.y.dtype);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::fill_n(y + row * args.y.stride * element_bytes, args.y.cols * element_bytes, 0);
    }
  }
  if (args.bias != nullptr) {
    if (args.y.dtype == DType::kF32) {
      AddBias<float>(args.bias, args.y, stream);
    } else {
      AddBias<BF16>(args.bias, args.y, stream);
    }
  }
  return absl::OkStatus();
}

}  // namespace nibble::kernels
