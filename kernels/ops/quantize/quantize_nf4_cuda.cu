// The CUDA path of quantize_nf4.
#include <cfloat>

#include "kernels/cuda/device.cuh"
#include "kernels/ops/quantize/quantize_nf4_launch.h"

namespace nibble::kernels {
namespace {

// Four elements per lane and step: eight bytes of bf16 or sixteen of f32. Sixteen lanes share a block, or eight if it
// has 32 elements; with more than 64, they take it in several steps.
constexpr int kPerLane = 4;

struct Thresholds {
  float value[15];
};

// Branch-free binary search; NaN stays at code 0, as in the plain loops.
__device__ unsigned Code(float v, const float* thresholds) {
  unsigned code = v > thresholds[7] ? 8u : 0u;
  code += v > thresholds[code + 3] ? 4u : 0u;
  code += v > thresholds[code + 1] ? 2u : 0u;
  code += v > thresholds[code] ? 1u : 0u;
  return code;
}

// The elements of a row from column `at` on; 0 past the end.
template <typename T>
__device__ void LoadFour(const T* row, std::int64_t at, std::int64_t k, float* value) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) value[i] = at + i < k ? LoadElement(row + at + i) : 0.0f;
}

template <int kLanes, typename T>
__global__ void Quantize(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t k, std::int64_t block,
                         Thresholds constants, std::uint8_t* codes, float* absmax) {
  __shared__ float thresholds[15];
  if (threadIdx.x < 15) thresholds[threadIdx.x] = constants.value[threadIdx.x];
  __syncthreads();
  const std::int64_t row_blocks = Nf4RowBlocks(k, block);
  const std::int64_t total = rows * row_blocks;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t per_step = std::int64_t{gridDim.x} * (blockDim.x / kLanes);
  // All lanes of a warp iterate together, even past the end: the shuffles name every lane.
  for (std::int64_t first = std::int64_t{blockIdx.x} * (blockDim.x / kLanes); first < total; first += per_step) {
    const std::int64_t b = first + threadIdx.x / kLanes;
    const std::int64_t row = b / row_blocks;
    const std::int64_t start = b % row_blocks * block + lane * kPerLane;  // column of this lane's first element
    const std::int64_t end = b < total ? min(b % row_blocks * block + block, k) : 0;
    float value[kPerLane];
    std::uint32_t top = 0;
    for (std::int64_t at = start; at < end; at += kLanes * kPerLane) {
      LoadFour(x + row * stride, at, end, value);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) top = max(top, __float_as_uint(value[i]) & 0x7fffffffu);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      top = max(top, __shfl_xor_sync(0xffffffffu, top, offset, kLanes));
    }
    const float scale = __uint_as_float(top);
    float inverse = __fdiv_rn(1.0f, scale);
    if (!(inverse <= FLT_MAX)) inverse = 0.0f;
    for (std::int64_t at = start; at < end; at += kLanes * kPerLane) {
      LoadFour(x + row * stride, at, end, value);
#pragma unroll
      for (int i = 0; i < kPerLane; i += 2) {
        if (at + i < end) {
          const unsigned high = Code(__fmul_rn(value[i], inverse), thresholds);
          const unsigned low = Code(__fmul_rn(value[i + 1], inverse), thresholds);
          codes[row * Nf4RowBytes(k) + (at + i) / 2] = static_cast<std::uint8_t>(high << 4 | low);
        }
      }
    }
    if (lane == 0 && b < total) absmax[b] = scale;
  }
}

template <int kLanes, typename T>
void Launch(const QuantizeNf4Args& args, cudaStream_t stream) {
  Thresholds constants;
  std::copy(kNf4Thresholds.begin(), kNf4Thresholds.end(), constants.value);
  const ConstMatrix& x = args.x;
  const unsigned grid = GridFor(x.rows * Nf4RowBlocks(x.cols, args.block), kCudaThreads / kLanes);
  Quantize<kLanes><<<grid, kCudaThreads, 0, stream>>>(x.Row<T>(0), x.stride, x.rows, x.cols, args.block, constants,
                                                      args.codes, args.absmax);
}

template <typename T>
void LaunchFor(const QuantizeNf4Args& args, cudaStream_t stream) {
  if (args.block == kNf4SmallestBlock) {
    Launch<8, T>(args, stream);
  } else {
    Launch<16, T>(args, stream);
  }
}

}  // namespace

LaunchResult QuantizeNf4Cuda(const QuantizeNf4Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.x.dtype == DType::kF32) {
    LaunchFor<float>(args, CudaStreamOf(stream));
  } else {
    LaunchFor<BF16>(args, CudaStreamOf(stream));
  }
  return Launched(stream, "quantize_nf4");
}

}  // namespace nibble::kernels
