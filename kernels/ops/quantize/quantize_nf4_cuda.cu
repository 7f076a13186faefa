// The CUDA path of quantize_nf4.
#include <cfloat>

#include "kernels/cuda/device.cuh"
#include "kernels/ops/quantize/quantize_nf4_launch.h"

namespace nibble::kernels {
namespace {

// Sixteen lanes per block, four elements per lane: eight bytes of bf16 or sixteen of f32.
constexpr int kLanes = 16;
constexpr int kPerLane = 4;
static_assert(kLanes * kPerLane == kNf4Block);

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

template <typename T>
__global__ void Quantize(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t k, Thresholds constants,
                         std::uint8_t* codes, float* absmax) {
  __shared__ float thresholds[15];
  if (threadIdx.x < 15) thresholds[threadIdx.x] = constants.value[threadIdx.x];
  __syncthreads();
  const std::int64_t row_blocks = Nf4RowBlocks(k);
  const std::int64_t total = rows * row_blocks;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t per_step = std::int64_t{gridDim.x} * (blockDim.x / kLanes);
  // All lanes of a warp iterate together, even past the end: the shuffles name every lane.
  for (std::int64_t first = std::int64_t{blockIdx.x} * (blockDim.x / kLanes); first < total; first += per_step) {
    const std::int64_t b = first + threadIdx.x / kLanes;
    const std::int64_t row = b / row_blocks;
    const std::int64_t at = b % row_blocks * kNf4Block + lane * kPerLane;  // column of this lane's first element
    float value[kPerLane];
    std::uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      value[i] = b < total && at + i < k ? LoadElement(x + row * stride + at + i) : 0.0f;
      top = max(top, __float_as_uint(value[i]) & 0x7fffffffu);
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      top = max(top, __shfl_xor_sync(0xffffffffu, top, offset, kLanes));
    }
    if (b >= total) continue;
    const float scale = __uint_as_float(top);
    float inverse = __fdiv_rn(1.0f, scale);
    if (!(inverse <= FLT_MAX)) inverse = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; i += 2) {
      if (at + i < k) {
        const unsigned high = Code(__fmul_rn(value[i], inverse), thresholds);
        const unsigned low = Code(__fmul_rn(value[i + 1], inverse), thresholds);
        codes[row * Nf4RowBytes(k) + (at + i) / 2] = static_cast<std::uint8_t>(high << 4 | low);
      }
    }
    if (lane == 0) absmax[b] = scale;
  }
}

}  // namespace

LaunchResult QuantizeNf4Cuda(const QuantizeNf4Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  Thresholds constants;
  std::copy(kNf4Thresholds.begin(), kNf4Thresholds.end(), constants.value);
  const ConstMatrix& x = args.x;
  const unsigned grid = GridFor(x.rows * Nf4RowBlocks(x.cols), kCudaThreads / kLanes);
  if (x.dtype == DType::kF32) {
    Quantize<<<grid, kCudaThreads, 0, CudaStreamOf(stream)>>>(x.Row<float>(0), x.stride, x.rows, x.cols, constants,
                                                              args.codes, args.absmax);
  } else {
    Quantize<<<grid, kCudaThreads, 0, CudaStreamOf(stream)>>>(x.Row<BF16>(0), x.stride, x.rows, x.cols, constants,
                                                              args.codes, args.absmax);
  }
  return Launched(stream, "quantize_nf4");
}

}  // namespace nibble::kernels
