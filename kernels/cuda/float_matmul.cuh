// The float product of many rows on CUDA: y = rn_y(x * w^T [+ y] [+ bias]) through cuBLASLt, summed in f32. Operands in
// the layout that cuBLASLt's fast kernels need are read and written in place; the others go through scratch.
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/formats/int8.h"  // RoundUp

namespace nibble::kernels {

// cuBLASLt's fast kernels need K and leading dimensions that are multiples of 16 bytes: 8 elements are 16 bytes of bf16
// or 32 bytes of f32.
constexpr std::int64_t kLeading = 8;

struct FloatProduct {
  ConstMatrix x;                // [M, K] f32 | bf16
  ConstMatrix w;                // [N, K] f32 | bf16; null data: w exists only in scratch
  DType type = DType::kF32;     // the type that is multiplied; bf16 only if x (and w) are bf16
  const float* bias = nullptr;  // [N]
  bool accumulate = false;
  Matrix y;  // [M, N] f32 | bf16
};

// Names under which launches are counted.
struct FloatKernelNames {
  const char* product;
  const char* widen;
  const char* epilogue;
};

template <typename From, typename To>
__global__ void WidenRows(const From* from, std::int64_t from_stride, std::int64_t rows, std::int64_t columns, To* to,
                          std::int64_t to_stride) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    const std::int64_t row = i / columns;
    const std::int64_t k = i % columns;
    StoreElement(to + row * to_stride + k, LoadElement(from + row * from_stride + k));
  }
}

// y = rn_y(sums [+ y] [+ bias]). Null `sums` stand for zeros. `sums` may alias y: a thread reads only the elements that
// it writes itself.
template <typename Y>
__global__ void FinishFloatRows(const float* sums, std::int64_t sums_stride, const float* bias, bool accumulate,
                                std::int64_t rows, std::int64_t columns, Y* y, std::int64_t y_stride) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step) {
    const std::int64_t row = i / columns;
    const std::int64_t n = i % columns;
    Y* out = y + row * y_stride + n;
    float value = sums == nullptr ? 0.0f : sums[row * sums_stride + n];
    if (accumulate) value += LoadElement(out);
    if (bias != nullptr) value += bias[n];
    StoreElement(out, value);
  }
}

// Copies the rows of `from` to `to`, in the same type or widened to f32.
inline LaunchResult CopyFloatRows(const ConstMatrix& from, const Matrix& to, const Stream& stream, const char* name) {
  if (from.dtype == to.dtype) {
    const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements * SizeOf(to.dtype)); };
    return ToResult(cudaMemcpy2DAsync(to.data, bytes(to.stride), from.data, bytes(from.stride), bytes(from.cols),
                                      static_cast<std::size_t>(from.rows), cudaMemcpyDeviceToDevice,
                                      CudaStreamOf(stream)));
  }
  WidenRows<<<GridFor(from.rows * from.cols), kCudaThreads, 0, CudaStreamOf(stream)>>>(
      from.Row<BF16>(0), from.stride, from.rows, from.cols, to.Row<float>(0), to.stride);
  return Launched(stream, name);
}

inline LaunchResult FinishFloatProduct(const FloatProduct& p, const float* sums, std::int64_t sums_stride,
                                       bool accumulate, const Stream& stream, const char* name) {
  const auto launch = [&](auto* y) {
    FinishFloatRows<<<GridFor(p.y.rows * p.y.cols), kCudaThreads, 0, CudaStreamOf(stream)>>>(
        sums, sums_stride, p.bias, accumulate, p.y.rows, p.y.cols, y, p.y.stride);
  };
  if (p.y.dtype == DType::kF32) {
    launch(p.y.Row<float>(0));
  } else {
    launch(p.y.Row<BF16>(0));
  }
  return Launched(stream, name);
}

// Requires at least one row and column of y. If w cannot be read in place, calls fill(matrix), which must write w to
// `matrix`, [N, K] of p.type in scratch.
template <typename Fill>
LaunchResult MultiplyFloatRows(const FloatProduct& p, const Stream& stream, const FloatKernelNames& names, Fill fill) {
  using Types = CublasLtProblem::Types;
  const std::int64_t m = p.x.rows, n = p.y.cols, k = p.x.cols;
  if (k == 0) return FinishFloatProduct(p, nullptr, 0, p.accumulate, stream, names.epilogue);
  const bool y_f32 = p.y.dtype == DType::kF32;
  const auto fits = [](const ConstMatrix& a) { return a.stride % kLeading == 0 && IsAligned(a.data, 16); };
  const auto read_in_place = [&](const ConstMatrix& a) {
    return a.data != nullptr && a.dtype == p.type && k % kLeading == 0 && fits(a);
  };
  const bool x_in_place = read_in_place(p.x), w_in_place = read_in_place(p.w);
  // Nothing may be rounded to bf16 before everything is added.
  const bool y_in_place = fits(p.y) && (y_f32 || (p.type == DType::kBF16 && p.bias == nullptr));
  const std::int64_t padded_k = RoundUp(k, kLeading), padded_n = RoundUp(n, kLeading);
  const std::int64_t x_at = w_in_place ? 0 : RoundUp(n * padded_k * SizeOf(p.type), 256);
  const std::int64_t sums_at = x_at + (x_in_place ? 0 : RoundUp(m * padded_k * SizeOf(p.type), 256));
  const std::int64_t bytes = sums_at + (y_in_place ? 0 : m * padded_n * std::int64_t{sizeof(float)});
  void* scratch = nullptr;
  if (LaunchResult result = stream.cuda->Scratch(bytes, &scratch); result.code != LaunchCode::kOk) return result;
  char* at = static_cast<char*>(scratch);
  if (padded_k != k) {  // neither x nor w is read in place, and their padding is multiplied too
    const cudaError_t error = cudaMemsetAsync(at, 0, static_cast<std::size_t>(sums_at), CudaStreamOf(stream));
    if (error != cudaSuccess) return ToResult(error);
  }
  const Matrix w{at, p.type, n, k, padded_k}, x{at + x_at, p.type, m, k, padded_k};
  if (!w_in_place) {
    if (LaunchResult result = fill(w); result.code != LaunchCode::kOk) return result;
  }
  if (!x_in_place) {
    const LaunchResult result = CopyFloatRows(p.x, x, stream, names.widen);
    if (result.code != LaunchCode::kOk) return result;
  }
  const ConstMatrix a = w_in_place ? p.w : w, b = x_in_place ? p.x : x;
  const Matrix d = y_in_place ? p.y : Matrix{at + sums_at, DType::kF32, m, n, padded_n};
  CublasLtProblem problem;
  const Types from_bf16 = d.dtype == DType::kF32 ? Types::kBF16ToF32 : Types::kBF16ToBF16;
  problem.types = p.type == DType::kF32 ? Types::kF32ToF32 : from_bf16;
  problem.m = n, problem.n = m, problem.k = padded_k;
  problem.lda = a.stride, problem.ldb = b.stride, problem.ldd = d.stride;
  problem.accumulate = p.accumulate && y_in_place;
  if (LaunchResult result = stream.cuda->Multiply(problem, a.data, b.data, d.data); result.code != LaunchCode::kOk) {
    return result;
  }
  if (stream.launches != nullptr) stream.launches->Add(names.product);
  if (y_in_place && p.bias == nullptr) return {};
  return FinishFloatProduct(p, static_cast<const float*>(d.data), d.stride, p.accumulate && !y_in_place, stream,
                            names.epilogue);
}

}  // namespace nibble::kernels
