// One row to int8 with its outliers, a thread block a row: shared by quantize_int8 and rms_norm_quantize. Codes equal
// those of the CPU: sums run over the same 16 lanes in the same order and tree; maxima and choices have no order.
// A Source gives Raw(row, k), an element of x in f32; Prepare(get, cols, shared), a number of the row that all threads
// compute together from its raw elements; Finish(raw, k, prepared), what is quantised.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/formats/int8.h"

namespace nibble::kernels {

constexpr int kInt8RowThreads = 256;
constexpr int kInt8RowWarps = kInt8RowThreads / 32;
// Rows up to here are staged in shared memory (40 KiB of the 48 that need no opt-in); longer ones are read again.
constexpr std::int64_t kInt8StagedCols = 10240;

struct Int8RowShared {
  unsigned long long key[kInt8RowWarps];
  float sum;
};

// lane l takes elements l, l + 16, ...: acc = step(acc, element); then the fixed tree. Every thread calls it.
template <typename Get, typename Step>
__device__ float LaneSum(Get get, int cols, Step step, Int8RowShared* shared) {
  if (threadIdx.x < 32) {  // the whole warp shuffles, its upper half with zeros
    float acc = 0.0f;
    if (threadIdx.x < 16) {
#pragma unroll 8
      for (int k = static_cast<int>(threadIdx.x); k < cols; k += 16) acc = step(acc, get(k));
    }
    for (int half = 8; half > 0; half /= 2) acc = __fadd_rn(acc, __shfl_down_sync(0xffffffffu, acc, half, 16));
    if (threadIdx.x == 0) shared->sum = acc;
  }
  __syncthreads();
  const float sum = shared->sum;
  __syncthreads();
  return sum;
}

// Orders elements by magnitude, then lower index first; above 0 for every element.
__device__ inline unsigned long long Int8Key(float x, int k) {
  return static_cast<unsigned long long>(__float_as_uint(x) & 0x7fffffffu) << 32 | (0xffffffffu - static_cast<unsigned>(k));
}
__device__ inline float KeyMagnitude(unsigned long long key) { return __uint_as_float(static_cast<unsigned>(key >> 32)); }
__device__ inline int KeyIndex(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key & 0xffffffffu));
}

// The largest key below `below`, or 0. Every thread calls it and gets the same.
template <typename Get>
__device__ unsigned long long LargestKeyBelow(Get get, int cols, unsigned long long below, Int8RowShared* shared) {
  unsigned long long best = 0;
  for (int k = static_cast<int>(threadIdx.x); k < cols; k += kInt8RowThreads) {
    const unsigned long long key = Int8Key(get(k), k);
    if (key < below && key > best) best = key;
  }
  for (int offset = 16; offset > 0; offset /= 2) best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
  if (threadIdx.x % 32 == 0) shared->key[threadIdx.x / 32] = best;
  __syncthreads();
  best = 0;
  for (const unsigned long long key : shared->key) best = max(best, key);
  __syncthreads();
  return best;
}

// Thread 0 writes the chosen keys in ascending order of index.
template <typename Get>
__device__ void EmitOutliers(Get get, unsigned long long* chosen, int count, const QuantizedRows& out, std::int64_t row) {
  int index[kMaxOutliers];
  for (int i = 0; i < count; ++i) {
    int at = i;
    for (; at > 0 && index[at - 1] > KeyIndex(chosen[i]); --at) index[at] = index[at - 1];
    index[at] = KeyIndex(chosen[i]);
  }
  for (int i = 0; i < count; ++i) {
    out.outlier_index[row * kMaxOutliers + i] = index[i];
    out.outlier_value[row * kMaxOutliers + i] = get(index[i]);
  }
  out.num_outliers[row] = count;
}

template <typename Get>
__device__ void QuantizeInt8Row(Get get, const QuantizedRows& out, std::int64_t row, int max_outliers,
                                Int8RowShared* shared) {
  const int cols = static_cast<int>(out.cols);
  const float sum = LaneSum(get, cols, [](float acc, float x) { return __fadd_rn(acc, fabsf(x)); }, shared);
  const float threshold = __fmul_rn(kOutlierRatio, __fdiv_rn(sum, static_cast<float>(cols)));
  unsigned long long best = LargestKeyBelow(get, cols, ~0ull, shared);
  unsigned long long chosen[kMaxOutliers];
  int count = 0;
  while (count < max_outliers && KeyMagnitude(best) > threshold) {  // the same in every thread
    chosen[count++] = best;
    best = LargestKeyBelow(get, cols, best, shared);
  }
  // best is now the largest of the rest: what is above it has left the row.
  const float scale = __fdiv_rn(fmaxf(KeyMagnitude(best), kInt8MinAbsmax), kInt8MaxCode);
  const float inverse = __fdiv_rn(1.0f, scale);
  std::int8_t* codes = out.codes + row * out.stride;
  for (int k = static_cast<int>(threadIdx.x); k < out.stride; k += kInt8RowThreads) {
    float code = 0.0f;
    if (k < cols) {
      const float x = get(k);
      const bool outlier = count > 0 && Int8Key(x, k) > best;
      code = outlier ? 0.0f : fminf(fmaxf(rintf(__fmul_rn(x, inverse)), -kInt8MaxCode), kInt8MaxCode);
    }
    codes[k] = static_cast<std::int8_t>(code);
  }
  if (threadIdx.x == 0) {
    out.scale[row] = scale;
    if (out.num_outliers != nullptr) EmitOutliers(get, chosen, count, out, row);
  }
}

template <bool kStaged, typename Source>
__global__ void __launch_bounds__(kInt8RowThreads) QuantizeInt8Rows(Source source, QuantizedRows out, int max_outliers) {
  extern __shared__ float staged[];
  __shared__ Int8RowShared shared;
  const std::int64_t row = blockIdx.x;
  const int cols = static_cast<int>(out.cols);
  if constexpr (kStaged) {
    for (int k = static_cast<int>(threadIdx.x); k < cols; k += kInt8RowThreads) staged[k] = source.Raw(row, k);
    __syncthreads();
    const float prepared = source.Prepare([&](int k) { return staged[k]; }, cols, &shared);
    for (int k = static_cast<int>(threadIdx.x); k < cols; k += kInt8RowThreads) {
      staged[k] = source.Finish(staged[k], k, prepared);
    }
    __syncthreads();
    QuantizeInt8Row([&](int k) { return staged[k]; }, out, row, max_outliers, &shared);
  } else {
    const float prepared = source.Prepare([&](int k) { return source.Raw(row, k); }, cols, &shared);
    QuantizeInt8Row([&](int k) { return source.Finish(source.Raw(row, k), k, prepared); }, out, row, max_outliers,
                    &shared);
  }
}

template <typename Source>
LaunchResult LaunchQuantizeInt8Rows(const Source& source, const QuantizedRows& out, int max_outliers,
                                    const QuantizeOptions& how, const Stream& stream, const char* name) {
  if (how.bits != 8 || how.per_tensor || how.min_absmax != kInt8MinAbsmax) {
    return {LaunchCode::kUnimplemented, "anything but native int8 (8 bits, a scale a row, its own smallest absmax) on CUDA"};
  }
  if (out.rows == 0) return {};
  if (out.rows > INT32_MAX || out.stride > INT32_MAX - kInt8RowThreads) {
    return {LaunchCode::kUnimplemented, "more than 2^31 rows or columns on CUDA"};
  }
  const unsigned grid = static_cast<unsigned>(out.rows);
  if (out.cols <= kInt8StagedCols) {
    const std::size_t bytes = static_cast<std::size_t>(out.cols) * sizeof(float);
    QuantizeInt8Rows<true><<<grid, kInt8RowThreads, bytes, CudaStreamOf(stream)>>>(source, out, max_outliers);
  } else {
    QuantizeInt8Rows<false><<<grid, kInt8RowThreads, 0, CudaStreamOf(stream)>>>(source, out, max_outliers);
  }
  return Launched(stream, name);
}

}  // namespace nibble::kernels
