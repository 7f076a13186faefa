// Three launches: the rows' sums, the scale from them, the codes. Sums run in the CPU's order, in f64.
#include "kernels/cuda/device.cuh"
#include "kernels/ops/quantize/ternarize_launch.h"

namespace nibble::kernels {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowsABlock = kRowThreads / 16;  // sixteen threads, the virtual lanes, sum one row
constexpr int kScaleThreads = 1024;

// Adds the parts of 16 lanes by the fixed tree: l + (l + 8), then + 4, + 2, + 1. Lane 0 gets the sum.
__device__ inline double LaneTree(double part) {
  for (int half = 8; half > 0; half /= 2) part = __dadd_rn(part, __shfl_down_sync(0xffffffffu, part, half, 16));
  return part;
}

template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    SumRows(const T* w, std::int64_t stride, std::int64_t rows, std::int64_t cols, double* sums) {
  const int lane = static_cast<int>(threadIdx.x) % 16;
  const std::int64_t row = std::int64_t{blockIdx.x} * kRowsABlock + threadIdx.x / 16;
  double part = 0.0;
  if (row < rows) {
    const T* p = w + row * stride;
#pragma unroll 8
    for (std::int64_t k = lane; k < cols; k += 16) {
      part = __dadd_rn(part, static_cast<double>(fabsf(LoadElement(p + k))));
    }
  }
  part = LaneTree(part);  // every thread calls it: a whole warp shuffles
  if (lane == 0 && row < rows) sums[row] = part;
}

// Runs as one block. Every element of scale gets max(mean, 1e-5); NaN is kept.
__global__ void __launch_bounds__(kScaleThreads)
    FindScale(const double* sums, std::int64_t rows, std::int64_t cols, float* scale) {
  __shared__ float shared;
  if (threadIdx.x < 32) {
    double part = 0.0;
    if (threadIdx.x < 16) {
#pragma unroll 8
      for (std::int64_t row = threadIdx.x; row < rows; row += 16) part = __dadd_rn(part, sums[row]);
    }
    part = LaneTree(part);
    const double mean = __ddiv_rn(part, __dmul_rn(static_cast<double>(rows), static_cast<double>(cols)));
    const float narrow = __double2float_rn(mean);
    if (threadIdx.x == 0) shared = narrow < kTernaryMinScale ? kTernaryMinScale : narrow;
  }
  __syncthreads();
  for (std::int64_t row = threadIdx.x; row < rows; row += kScaleThreads) scale[row] = shared;
}

// Each thread writes the sixteen codes of one block of one output, padding included.
template <typename T>
__global__ void WriteCodes(const T* w, std::int64_t stride, std::int64_t rows, std::int64_t cols, const float* scale,
                           std::uint8_t* stored, std::uint8_t* tiles) {
  const std::int64_t blocks = TernaryPaddedK(cols) / kTernaryBlock;
  const std::int64_t row_bytes = TernaryRowBytes(cols);
  const std::int64_t words = (rows + 15) / 16 * 16 * blocks;
  const float inverse = __fdiv_rn(1.0f, *scale);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    const std::int64_t n = i / blocks;
    const std::int64_t first = i % blocks * kTernaryBlock;
    std::uint32_t in_order = 0x55555555u;
    for (int j = 0; n < rows && j < kTernaryBlock && first + j < cols; ++j) {
      const float rounded = rintf(__fmul_rn(LoadElement(w + n * stride + first + j), inverse));
      const std::uint32_t code = rounded > 0.0f ? 2u : rounded < 0.0f ? 0u : 1u;
      in_order = (in_order & ~(3u << (2 * j))) | code << (2 * j);
    }
    if (tiles != nullptr) {
      reinterpret_cast<std::uint32_t*>(tiles)[TernaryByte(blocks * kTernaryBlock, n, first) / 4] =
          TransposeTernary(in_order);
    }
    if (stored == nullptr || n >= rows || first >= cols) continue;
    const std::int64_t left = cols - first;
    if (left < kTernaryBlock) in_order &= (1u << (2 * left)) - 1u;
    for (std::int64_t byte = first / 4; byte < row_bytes && byte < first / 4 + 4; ++byte, in_order >>= 8) {
      stored[n * row_bytes + byte] = static_cast<std::uint8_t>(in_order);
    }
  }
}

template <typename T>
LaunchResult TernarizeType(const TernarizeArgs& args, const Stream& stream) {
  const std::int64_t rows = args.w.rows;
  const std::int64_t cols = args.w.cols;
  void* scratch = nullptr;
  LaunchResult result = stream.cuda->Scratch(rows * std::int64_t{sizeof(double)}, &scratch);
  if (result.code != LaunchCode::kOk) return result;
  auto* sums = static_cast<double*>(scratch);
  const T* w = args.w.Row<T>(0);
  const auto grid = static_cast<unsigned>((rows + kRowsABlock - 1) / kRowsABlock);
  SumRows<<<grid, kRowThreads, 0, CudaStreamOf(stream)>>>(w, args.w.stride, rows, cols, sums);
  result = Launched(stream, "ternarise_sum");
  if (result.code != LaunchCode::kOk) return result;
  FindScale<<<1, kScaleThreads, 0, CudaStreamOf(stream)>>>(sums, rows, cols, args.scale);
  result = Launched(stream, "ternarise_scale");
  if (result.code != LaunchCode::kOk) return result;
  const std::int64_t words = RoundUp(rows, kTernaryTileRows) * TernaryPaddedK(cols) / kTernaryBlock;
  WriteCodes<<<GridFor(words), kCudaThreads, 0, CudaStreamOf(stream)>>>(w, args.w.stride, rows, cols, args.scale,
                                                                        args.rows, args.tiles);
  return Launched(stream, "ternarise");
}

}  // namespace

LaunchResult TernarizeCuda(const TernarizeArgs& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.w.rows > INT32_MAX) return {LaunchCode::kUnimplemented, "more than 2^31 rows on CUDA"};
  if (!IsAligned(args.tiles, 4)) return {LaunchCode::kInternal, "tiles must be aligned to 4 bytes on CUDA"};
  return args.w.dtype == DType::kF32 ? TernarizeType<float>(args, stream) : TernarizeType<BF16>(args, stream);
}

}  // namespace nibble::kernels
