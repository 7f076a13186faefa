// Quantizes rows to integer codes with outliers, one thread block per row; shared by quantize_int8 and
// rms_norm_quantize. Codes equal those of the CPU: sums run over the same 16 lanes in the same order and tree; maxima
// and the choice of outliers do not depend on the order. A Source supplies the rows by three functions:
//   Raw(row, k)                      an element of x in f32
//   Prepare(get, row, cols, shared)  a number for the row, which all threads compute together; get(k) is Raw(row, k)
//   Finish(raw, k, prepared)         the value to quantize
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/formats/int8.h"

namespace nibble::kernels {

constexpr int kInt8RowThreads = 256;
constexpr int kInt8RowWarps = kInt8RowThreads / 32;
// Longest row that is staged in shared memory: 40 KiB, and a block may use 48 KiB without opting in. A longer row is
// read again from device memory for each pass.
constexpr std::int64_t kInt8StagedCols = 10240;

struct Int8RowShared {
  unsigned long long key[kInt8RowWarps];
  float sum;
};

// Lane l takes elements l, l + 16, ...: acc = step(acc, element); then the fixed tree. Every thread must call it.
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

// Larger for a larger magnitude, and among equal magnitudes for a lower index. Above 0 for every element.
__device__ inline unsigned long long Int8Key(float x, int k) {
  return static_cast<unsigned long long>(__float_as_uint(x) & 0x7fffffffu) << 32 |
         (0xffffffffu - static_cast<unsigned>(k));
}
__device__ inline float KeyMagnitude(unsigned long long key) {
  return __uint_as_float(static_cast<unsigned>(key >> 32));
}
__device__ inline int KeyIndex(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key & 0xffffffffu));
}

constexpr unsigned long long kAboveAllKeys = ~0ull;

// The largest key below `below`, or 0. Every thread must call it; all get the same result.
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

// Writes the outliers with the chosen keys in ascending order of index. Only thread 0 calls it.
template <typename Get>
__device__ void EmitOutliers(Get get, unsigned long long* chosen, int count, const QuantizedRows& out,
                             std::int64_t row) {
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

// The source of the scale. kOwn: the row's own absmax. kGiven: one absmax for all rows, found by an earlier launch.
// kFind: this launch only finds the absmax of each row.
enum class RowScale { kOwn, kGiven, kFind };

struct QuantizeInt8Job {
  QuantizedRows out;
  QuantizeOptions how;
  int max_outliers;
  RowScale row_scale;
  float* absmax;  // kGiven: one value; kFind: receives one per row
};

// Writes the codes and the scale of a row. Elements whose keys are above largest_kept are outliers: their codes are 0.
template <typename Get>
__device__ void WriteCodes(Get get, float absmax, const QuantizeInt8Job& job, std::int64_t row,
                           unsigned long long largest_kept) {
  const QuantizedRows& out = job.out;
  const float max_code = MaxCode(job.how.bits);
  const float bound = fmaxf(absmax, job.how.min_absmax);
  const bool native = job.how.scaling == RowScaling::kNative;
  const float first =  // scale or factor
      native ? __fdiv_rn(bound, max_code) : __fmul_rn(max_code, __fdiv_rn(1.0f, bound));
  const float second = __fdiv_rn(1.0f, first);
  const float scale = native ? first : second;
  const float factor = native ? second : first;
  for (int k = static_cast<int>(threadIdx.x); k < out.stride; k += kInt8RowThreads) {
    float code = 0.0f;
    if (k < out.cols) {
      const float x = get(k);
      const bool outlier = Int8Key(x, k) > largest_kept;
      code = outlier ? 0.0f : fminf(fmaxf(rintf(__fmul_rn(x, factor)), -max_code), max_code);
    }
    if (job.how.bits == 16) {
      out.wide_codes[row * out.stride + k] = static_cast<std::int16_t>(code);
    } else {
      out.codes[row * out.stride + k] = static_cast<std::int8_t>(code);
    }
  }
  if (threadIdx.x == 0) out.scale[row] = scale;
}

template <typename Get>
__device__ void QuantizeInt8Row(Get get, const QuantizeInt8Job& job, std::int64_t row, Int8RowShared* shared) {
  const QuantizedRows& out = job.out;
  const int cols = static_cast<int>(out.cols);
  unsigned long long chosen[kMaxOutliers];
  int count = 0;
  if (job.row_scale == RowScale::kGiven) {
    WriteCodes(get, *job.absmax, job, row, kAboveAllKeys);  // no outliers
  } else {
    unsigned long long best = LargestKeyBelow(get, cols, kAboveAllKeys, shared);
    if (job.row_scale == RowScale::kFind) {
      if (threadIdx.x == 0) job.absmax[row] = KeyMagnitude(best);
      return;
    }
    if (job.max_outliers > 0) {
      const float sum = LaneSum(get, cols, [](float acc, float x) { return __fadd_rn(acc, fabsf(x)); }, shared);
      const float threshold = __fmul_rn(kOutlierRatio, __fdiv_rn(sum, static_cast<float>(cols)));
      while (count < job.max_outliers && KeyMagnitude(best) > threshold) {  // the same in every thread
        chosen[count++] = best;
        best = LargestKeyBelow(get, cols, best, shared);
      }
    }
    // best is now the largest remaining key: all keys above it are outliers.
    WriteCodes(get, KeyMagnitude(best), job, row, count > 0 ? best : kAboveAllKeys);
  }
  if (threadIdx.x == 0 && out.num_outliers != nullptr) EmitOutliers(get, chosen, count, out, row);
}

template <bool kStaged, typename Source>
__global__ void __launch_bounds__(kInt8RowThreads) QuantizeInt8Rows(Source source, QuantizeInt8Job job) {
  extern __shared__ float staged[];
  __shared__ Int8RowShared shared;
  const std::int64_t row = blockIdx.x;
  const int cols = static_cast<int>(job.out.cols);
  if constexpr (kStaged) {
    for (int k = static_cast<int>(threadIdx.x); k < cols; k += kInt8RowThreads) staged[k] = source.Raw(row, k);
    __syncthreads();
    const float prepared = source.Prepare([&](int k) { return staged[k]; }, row, cols, &shared);
    for (int k = static_cast<int>(threadIdx.x); k < cols; k += kInt8RowThreads) {
      staged[k] = source.Finish(staged[k], k, prepared);
    }
    __syncthreads();
    QuantizeInt8Row([&](int k) { return staged[k]; }, job, row, &shared);
  } else {
    const float prepared = source.Prepare([&](int k) { return source.Raw(row, k); }, row, cols, &shared);
    QuantizeInt8Row([&](int k) { return source.Finish(source.Raw(row, k), k, prepared); }, job, row, &shared);
  }
}

// Writes the largest of n values to values[0]; runs as one block.
inline __global__ void __launch_bounds__(kInt8RowThreads) LargestOf(float* values, std::int64_t n) {
  __shared__ float warps[kInt8RowWarps];
  float best = 0.0f;
  for (std::int64_t i = threadIdx.x; i < n; i += kInt8RowThreads) best = fmaxf(best, values[i]);
  for (int offset = 16; offset > 0; offset /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const float warp : warps) best = fmaxf(best, warp);
  values[0] = best;
}

template <typename Source>
LaunchResult LaunchQuantizeInt8Job(const Source& source, const QuantizeInt8Job& job, const Stream& stream,
                                   const char* name) {
  const unsigned grid = static_cast<unsigned>(job.out.rows);
  if (job.out.cols <= kInt8StagedCols) {
    const std::size_t bytes = static_cast<std::size_t>(job.out.cols) * sizeof(float);
    QuantizeInt8Rows<true><<<grid, kInt8RowThreads, bytes, CudaStreamOf(stream)>>>(source, job);
  } else {
    QuantizeInt8Rows<false><<<grid, kInt8RowThreads, 0, CudaStreamOf(stream)>>>(source, job);
  }
  return Launched(stream, name);
}

template <typename Source>
LaunchResult LaunchQuantizeInt8Rows(const Source& source, const QuantizedRows& out, int max_outliers,
                                    const QuantizeOptions& how, const Stream& stream, const char* name) {
  if (out.rows == 0) return {};
  if (out.rows > INT32_MAX || out.stride > INT32_MAX - kInt8RowThreads) {
    return {LaunchCode::kUnimplemented, "more than 2^31 rows or columns on CUDA"};
  }
  QuantizeInt8Job job{out, how, max_outliers, RowScale::kOwn, nullptr};
  if (!how.per_tensor) return LaunchQuantizeInt8Job(source, job, stream, name);
  void* scratch = nullptr;
  LaunchResult result = stream.cuda->Scratch(out.rows * std::int64_t{sizeof(float)}, &scratch);
  if (result.code != LaunchCode::kOk) return result;
  job.absmax = static_cast<float*>(scratch);
  job.row_scale = RowScale::kFind;
  result = LaunchQuantizeInt8Job(source, job, stream, name);
  if (result.code != LaunchCode::kOk) return result;
  LargestOf<<<1, kInt8RowThreads, 0, CudaStreamOf(stream)>>>(job.absmax, out.rows);
  result = Launched(stream, name);
  if (result.code != LaunchCode::kOk) return result;
  job.row_scale = RowScale::kGiven;
  return LaunchQuantizeInt8Job(source, job, stream, name);
}

}  // namespace nibble::kernels
