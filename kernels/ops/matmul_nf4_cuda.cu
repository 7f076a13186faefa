// Few rows: one fused kernel, a warp an output, weights decoded as they are multiplied. More rows: w is dequantised into
// scratch in x's type and multiplied by cuBLASLt, which costs less from a few tens of rows on (numerics.md, 0.10).
#include <type_traits>

#include "kernels/cuda/nf4.cuh"
#include "kernels/ops/matmul_nf4_launch.h"

namespace nibble::kernels {
namespace {

constexpr std::int64_t kFewRows = 4;
constexpr int kWarps = 4;         // outputs a block
constexpr int kLaneElements = 8;  // four bytes of codes a lane and step; eight lanes to a block of 64

// Four bytes of codes; what lies past the row reads as 0.
__device__ std::uint32_t LoadCodes(const std::uint8_t* row, std::int64_t at, std::int64_t row_bytes, bool aligned) {
  if (aligned && at + 4 <= row_bytes) return *reinterpret_cast<const std::uint32_t*>(row + at);
  std::uint32_t four = 0;
  for (int i = 0; i < 4; ++i) {
    if (at + i < row_bytes) four |= std::uint32_t{row[at + i]} << (8 * i);
  }
  return four;
}

template <int kM, typename X, typename Y>
__global__ void __launch_bounds__(kWarps * 32) Fused(const X* x, std::int64_t x_stride, Nf4Weight w, Nf4BookValue book_value,
                                                     const float* bias, Y* y, std::int64_t y_stride, bool aligned) {
  __shared__ float book[16];
  CopyNf4Book(book_value, book);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t n = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (n >= w.rows) return;  // whole warps leave; nothing below waits for them
  const std::int64_t row_bytes = Nf4RowBytes(w.cols);
  const std::uint8_t* codes = w.codes + n * row_bytes;
  const float* absmax = w.absmax + n * Nf4RowBlocks(w.cols);
  float sum[kM] = {};
  for (std::int64_t k = lane * kLaneElements; k < w.cols; k += 32 * kLaneElements) {
    const std::uint32_t four = LoadCodes(codes, k / 2, row_bytes, aligned);
    const float scale = absmax[k / kNf4Block];
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

template <typename Y>
__global__ void AddBias(const float* sums, std::int64_t sums_stride, const float* bias, std::int64_t rows,
                        std::int64_t columns, Y* y, std::int64_t y_stride) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    const std::int64_t row = i / columns;
    const std::int64_t n = i % columns;
    const float sum = sums[row * sums_stride + n];
    StoreElement(y + row * y_stride + n, bias == nullptr ? sum : sum + bias[n]);
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

// What cuBLASLt's fast kernels want of a leading dimension and of pointers: 16 bytes in any of our types.
constexpr std::int64_t kLeading = 8;

constexpr std::int64_t RoundUp(std::int64_t n, std::int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The product in f32 (or straight in y, where nothing is left to do to it), then bias and rounding. An x that cuBLASLt
// may have no kernel for is copied to rows of whole blocks first; what pads x and w is zero.
template <typename X, typename Y>
LaunchResult ManyRows(const MatmulNf4Args& args, const Stream& stream) {
  using Types = CublasLtProblem::Types;
  constexpr bool kX32 = std::is_same_v<X, float>;
  constexpr bool kY32 = std::is_same_v<Y, float>;
  const Nf4Weight& w = args.w;
  const std::int64_t m = args.x.rows;
  const std::int64_t padded_k = RoundUp(w.cols, kNf4Block);
  const std::int64_t padded_n = RoundUp(w.rows, kLeading);
  const bool copy_x = w.cols % kLeading != 0 || args.x.stride % kLeading != 0 || !IsAligned(args.x.data, 16);
  const bool direct = args.bias == nullptr && (kY32 || !kX32) && padded_n == w.rows &&
                      args.y.stride % kLeading == 0 && IsAligned(args.y.data, 16);
  const std::int64_t x_at = RoundUp(padded_n * padded_k * std::int64_t{sizeof(X)}, 256);
  const std::int64_t sums_at = x_at + (copy_x ? RoundUp(m * padded_k * std::int64_t{sizeof(X)}, 256) : 0);
  const std::int64_t bytes = sums_at + (direct ? 0 : m * padded_n * std::int64_t{sizeof(float)});
  void* scratch = nullptr;
  if (LaunchResult result = stream.cuda->Scratch(bytes, &scratch); result.code != LaunchCode::kOk) return result;
  char* at = static_cast<char*>(scratch);
  const cudaStream_t cuda_stream = CudaStreamOf(stream);
  if (padded_n != w.rows || copy_x) {
    const cudaError_t error = cudaMemsetAsync(scratch, 0, static_cast<std::size_t>(sums_at), cuda_stream);
    if (error != cudaSuccess) return ToResult(error);
  }
  const Matrix weight{scratch, kX32 ? DType::kF32 : DType::kBF16, w.rows, w.cols, padded_k};
  LaunchResult result = DequantizeNf4OnCuda(w, weight, stream, "matmul_nf4_dequantize");
  if (result.code != LaunchCode::kOk) return result;
  if (copy_x) {
    const std::size_t pitch = static_cast<std::size_t>(padded_k) * sizeof(X);
    const std::size_t from_pitch = static_cast<std::size_t>(args.x.stride) * sizeof(X);
    const std::size_t width = static_cast<std::size_t>(w.cols) * sizeof(X);
    const cudaError_t error = cudaMemcpy2DAsync(at + x_at, pitch, args.x.data, from_pitch, width,
                                                static_cast<std::size_t>(m), cudaMemcpyDeviceToDevice, cuda_stream);
    if (error != cudaSuccess) return ToResult(error);
  }
  float* sums = reinterpret_cast<float*>(at + sums_at);
  CublasLtProblem problem;
  problem.types = kX32 ? Types::kF32ToF32 : (kY32 || !direct) ? Types::kBF16ToF32 : Types::kBF16ToBF16;
  problem.m = padded_n;
  problem.n = m;
  problem.k = copy_x ? padded_k : w.cols;
  problem.lda = padded_k;
  problem.ldb = copy_x ? padded_k : args.x.stride;
  problem.ldd = direct ? args.y.stride : padded_n;
  result = stream.cuda->Multiply(problem, scratch, copy_x ? at + x_at : args.x.data, direct ? args.y.data : sums);
  if (result.code != LaunchCode::kOk) return result;
  if (stream.launches != nullptr) stream.launches->Add("matmul_nf4");
  if (direct) return {};
  AddBias<<<GridFor(m * w.rows), kCudaThreads, 0, cuda_stream>>>(sums, padded_n, args.bias, m, w.rows,
                                                                 args.y.Row<Y>(0), args.y.stride);
  return Launched(stream, "matmul_nf4_epilogue");
}

template <typename X, typename Y>
LaunchResult Multiply(const MatmulNf4Args& args, const Stream& stream) {
  // Without columns there is nothing to dequantise or multiply; the fused kernel leaves the bias, four rows at a time.
  if (args.x.rows <= kFewRows) return FewRows<X, Y>(args, stream);
  if (args.w.cols > 0) return ManyRows<X, Y>(args, stream);
  for (std::int64_t m = 0; m < args.x.rows; m += kFewRows) {
    MatmulNf4Args part = args;
    part.x.rows = std::min(kFewRows, args.x.rows - m);
    part.y.data = args.y.Row<Y>(m);
    if (LaunchResult result = FewRows<X, Y>(part, stream); result.code != LaunchCode::kOk) return result;
  }
  return {};
}

}  // namespace

LaunchResult MatmulNf4Cuda(const MatmulNf4Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  const bool y_f32 = args.y.dtype == DType::kF32;
  if (args.x.dtype == DType::kF32) {
    return y_f32 ? Multiply<float, float>(args, stream) : Multiply<float, BF16>(args, stream);
  }
  return y_f32 ? Multiply<BF16, float>(args, stream) : Multiply<BF16, BF16>(args, stream);
}

}  // namespace nibble::kernels
