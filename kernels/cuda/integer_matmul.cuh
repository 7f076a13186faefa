// Shared by the integer products on CUDA: the epilogue (docs/numerics.md 3), and the path for many rows, which writes
// the weight's codes by rows to scratch for cuBLASLt (int8 in, int32 out) and then runs one epilogue kernel.
// WeightCode(w, n, k) returns one code of the Weight, for the epilogue's outliers.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/formats/int8.h"

namespace nibble::kernels {

constexpr std::int64_t kMaxScratchSums = std::int64_t{64} << 20;  // int32 sums in scratch: 256 MiB

template <typename Weight>
struct IntegerEpilogue {
  QuantizedRows x;
  Weight w;
  const float* bias;

  __device__ float operator()(std::int64_t row, std::int64_t n, int acc) const {
    float y = __fmul_rn(__fmul_rn(__int2float_rn(acc), x.scale[row]), w.scale[n]);
    const int outliers = x.num_outliers == nullptr ? 0 : x.num_outliers[row];
    if (outliers > 0) {
      float o = 0.0f;
      for (int i = 0; i < outliers; ++i) {
        const std::int64_t j = x.outlier_index[row * kMaxOutliers + i];
        o = __fmaf_rn(x.outlier_value[row * kMaxOutliers + i], static_cast<float>(WeightCode(w, n, j)), o);
      }
      y = __fadd_rn(y, __fmul_rn(o, w.scale[n]));
    }
    return bias == nullptr ? y : __fadd_rn(y, bias[n]);
  }
};

template <typename Weight, typename Y>
__global__ void FinishIntegerRows(IntegerEpilogue<Weight> epilogue, const int* sums, std::int64_t sums_stride,
                                  std::int64_t first_row, std::int64_t rows, Y* y, std::int64_t y_stride) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t columns = epilogue.w.rows;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    const std::int64_t row = i / columns;
    const std::int64_t n = i % columns;
    StoreElement(y + (first_row + row) * y_stride + n, epilogue(first_row + row, n, sums[row * sums_stride + n]));
  }
}

struct IntegerKernelNames {
  const char* product;
  const char* epilogue;
};

// unpack(std::int8_t* rows) launches the kernel that fills [padded_n, padded_k] codes.
template <typename Y, typename Weight, typename Unpack>
LaunchResult MultiplyManyIntegerRows(const IntegerEpilogue<Weight>& epilogue, const Matrix& y, const Stream& stream,
                                     const IntegerKernelNames& names, Unpack unpack) {
  const Weight& w = epilogue.w;
  const QuantizedRows& x = epilogue.x;
  const std::int64_t padded_n = RoundUp(w.rows, kInt8TileRows);  // whole tiles; a ternary tile has as many rows
  const std::int64_t rows_at_a_time = std::max<std::int64_t>(16, std::min(x.rows, kMaxScratchSums / padded_n));
  const std::int64_t weight_bytes = RoundUp(padded_n * w.padded_k, 256);
  void* scratch = nullptr;
  const std::int64_t bytes = weight_bytes + rows_at_a_time * padded_n * std::int64_t{sizeof(int)};
  if (LaunchResult result = stream.cuda->Scratch(bytes, &scratch); result.code != LaunchCode::kOk) return result;
  auto* codes = static_cast<std::int8_t*>(scratch);
  int* sums = reinterpret_cast<int*>(codes + weight_bytes);
  if (LaunchResult result = unpack(codes); result.code != LaunchCode::kOk) return result;
  for (std::int64_t first = 0; first < x.rows; first += rows_at_a_time) {
    const std::int64_t m = std::min(rows_at_a_time, x.rows - first);
    // The product runs over padded_k columns: in the rows of x, the codes past column x.cols are zero.
    const CublasLtProblem problem{
        CublasLtProblem::Types::kI8ToI32, padded_n, m, w.padded_k, w.padded_k, x.stride, padded_n};
    LaunchResult result = stream.cuda->Multiply(problem, codes, x.codes + first * x.stride, sums);
    if (result.code != LaunchCode::kOk) return result;
    if (stream.launches != nullptr) stream.launches->Add(names.product);
    FinishIntegerRows<<<GridFor(m * w.rows), kCudaThreads, 0, CudaStreamOf(stream)>>>(epilogue, sums, padded_n, first,
                                                                                      m, y.Row<Y>(0), y.stride);
    result = Launched(stream, names.epilogue);
    if (result.code != LaunchCode::kOk) return result;
  }
  return {};
}

}  // namespace nibble::kernels
