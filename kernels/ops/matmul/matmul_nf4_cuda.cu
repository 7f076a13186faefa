// Up to kFewRows rows: one fused kernel, instantiated for each number of rows, with one warp per output; weights are
// decoded as they are multiplied. More rows: w is dequantized into scratch in x's type and multiplied by cuBLASLt,
// which becomes cheaper than fusing at a few tens of rows (docs/numerics.md 4).
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/cuda/nf4.cuh"
#include "kernels/ops/matmul/matmul_nf4_launch.h"

namespace nibble::kernels {
namespace {

constexpr std::int64_t kFewRows = 4;
constexpr int kWarps = 4;         // outputs per block
constexpr int kLaneElements = 8;  // four bytes of codes per lane and step, all of one block

// Loads four bytes of codes; bytes past the row read as 0.
__device__ std::uint32_t LoadCodes(const std::uint8_t* row, std::int64_t at, std::int64_t row_bytes, bool aligned) {
  if (aligned && at + 4 <= row_bytes) return *reinterpret_cast<const std::uint32_t*>(row + at);
  std::uint32_t four = 0;
  for (int i = 0; i < 4; ++i) {
    if (at + i < row_bytes) four |= std::uint32_t{row[at + i]} << (8 * i);
  }
  return four;
}

template <int kM, typename X, typename Y>
__global__ void __launch_bounds__(kWarps * 32)
    Fused(const X* x, std::int64_t x_stride, Nf4Weight w, Nf4BookValue book_value, const float* bias, Y* y,
          std::int64_t y_stride, bool aligned) {
  __shared__ float book[16];
  CopyNf4Book(book_value, book);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t n = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (n >= w.rows) return;  // whole warps leave; nothing below waits for them
  const std::int64_t row_bytes = Nf4RowBytes(w.cols);
  const std::uint8_t* codes = w.codes + n * row_bytes;
  const float* absmax = w.absmax + n * Nf4RowBlocks(w.cols, w.block);
  const int shift = Nf4ShiftOnDevice(w.block);
  float sum[kM] = {};
  for (std::int64_t k = lane * kLaneElements; k < w.cols; k += 32 * kLaneElements) {
    const std::uint32_t four = LoadCodes(codes, k / 2, row_bytes, aligned);
    const float scale = absmax[k >> shift];
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (k + i < w.cols) {
        const std::uint32_t code = four >> (i / 2 * 8 + (i % 2 == 0 ? 4 : 0)) & 15u;
        const float weight = RoundedTo<X>(__fmul_rn(book[code], scale));
#pragma unroll
        for (int m = 0; m < kM; ++m) sum[m] = __fmaf_rn(weight, LoadElement(x + m * x_stride + k + i), sum[m]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    for (int offset = 16; offset > 0; offset /= 2) sum[m] += __shfl_xor_sync(0xffffffffu, sum[m], offset);
    if (lane == 0) StoreElement(y + m * y_stride + n, bias == nullptr ? sum[m] : sum[m] + bias[n]);
  }
}

template <typename X, typename Y>
LaunchResult FewRows(const MatmulNf4Args& args, const Stream& stream) {
  const X* x = args.x.Row<X>(0);
  Y* y = args.y.Row<Y>(0);
  const bool aligned = Nf4RowBytes(args.w.cols) % 4 == 0 && IsAligned(args.w.codes, 4);
  const unsigned grid = static_cast<unsigned>((args.w.rows + kWarps - 1) / kWarps);
  const Nf4BookValue book = MakeNf4BookValue();
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kWarps * 32, 0, CudaStreamOf(stream)>>>(x, args.x.stride, args.w, book, args.bias, y, args.y.stride,
                                                           aligned);
  };
  switch (args.x.rows) {
    case 1: launch(Fused<1, X, Y>); break;
    case 2: launch(Fused<2, X, Y>); break;
    case 3: launch(Fused<3, X, Y>); break;
    default: launch(Fused<4, X, Y>); break;
  }
  return Launched(stream, "matmul_nf4");
}

LaunchResult ManyRows(const MatmulNf4Args& args, const Stream& stream) {
  const FloatProduct product{args.x, /*w=*/{}, args.x.dtype, args.bias, /*accumulate=*/false, args.y};
  return MultiplyFloatRows(
      product, stream, {"matmul_nf4", "matmul_nf4_widen", "matmul_nf4_epilogue"},
      [&](const Matrix& w) { return DequantizeNf4OnCuda(args.w, w, stream, "matmul_nf4_dequantize"); });
}

}  // namespace

LaunchResult MatmulNf4Cuda(const MatmulNf4Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.x.rows > kFewRows) return ManyRows(args, stream);
  const bool y_f32 = args.y.dtype == DType::kF32;
  if (args.x.dtype == DType::kF32) {
    return y_f32 ? FewRows<float, float>(args, stream) : FewRows<float, BF16>(args, stream);
  }
  return y_f32 ? FewRows<BF16, float>(args, stream) : FewRows<BF16, BF16>(args, stream);
}

}  // namespace nibble::kernels
