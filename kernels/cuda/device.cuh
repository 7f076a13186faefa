// Shared by every .cu: element access with our own bf16 rounding, launch checks, grid sizes.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

__device__ inline float LoadElement(const float* p) { return *p; }
__device__ inline float LoadElement(const BF16* p) {
  return __uint_as_float(static_cast<std::uint32_t>(p->bits) << 16);
}

// Gives the bits of ToBF16 (kernels/dtype.h).
__device__ inline BF16 NarrowToBF16(float x) {
  const std::uint32_t u = __float_as_uint(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return BF16{static_cast<std::uint16_t>((u >> 16) | 0x0040u)};
  return BF16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
__device__ inline void StoreElement(float* p, float x) { *p = x; }
__device__ inline void StoreElement(BF16* p, float x) { *p = NarrowToBF16(x); }

// rn_T of the docstrings, as a float.
template <typename T>
__device__ inline float RoundedTo(float x);
template <>
__device__ inline float RoundedTo<float>(float x) {
  return x;
}
template <>
__device__ inline float RoundedTo<BF16>(float x) {
  const BF16 narrow = NarrowToBF16(x);
  return LoadElement(&narrow);
}

// Threads per block for kernels with independent threads: a multiple of the warp size that runs well on every device.
constexpr int kCudaThreads = 256;

// Blocks for n independent items; kernels loop with stride gridDim, so the cap (more than any device runs at once) is
// safe.
inline unsigned GridFor(std::int64_t n, std::int64_t per_block = kCudaThreads) {
  return static_cast<unsigned>(std::min<std::int64_t>((n + per_block - 1) / per_block, std::int64_t{1} << 20));
}

inline bool IsAligned(const void* p, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

inline LaunchResult NeedsContext(const Stream& stream) {
  if (stream.cuda != nullptr) return {};
  return {LaunchCode::kInternal, "the stream has no CudaContext"};
}

inline cudaStream_t CudaStreamOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.cuda->stream()); }

// Called after each <<<>>>: counts the grid and reports errors of the launch itself. Does not wait.
inline LaunchResult Launched(const Stream& stream, const char* kernel) {
  if (stream.launches != nullptr) stream.launches->Add(kernel);
  return ToResult(cudaGetLastError());
}

}  // namespace nibble::kernels
