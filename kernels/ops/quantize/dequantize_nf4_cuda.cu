// The CUDA path of dequantize_nf4, and DequantizeNf4OnCuda for the ops that need a whole weight in scratch.
#include "kernels/cuda/nf4.cuh"
#include "kernels/ops/quantize/dequantize_nf4_launch.h"

namespace nibble::kernels {
namespace {

// Stores the eight elements of one thread, all of one block: the thread reads four bytes of codes and stores sixteen
// (bf16) or thirty-two (f32) bytes.
__device__ void Store8(float* out, const float* value) {
  reinterpret_cast<float4*>(out)[0] = make_float4(value[0], value[1], value[2], value[3]);
  reinterpret_cast<float4*>(out)[1] = make_float4(value[4], value[5], value[6], value[7]);
}

__device__ std::uint32_t Pair(float low, float high) {
  return std::uint32_t{NarrowToBF16(low).bits} | std::uint32_t{NarrowToBF16(high).bits} << 16;
}
__device__ void Store8(BF16* out, const float* value) {
  *reinterpret_cast<uint4*>(out) = make_uint4(Pair(value[0], value[1]), Pair(value[2], value[3]),
                                              Pair(value[4], value[5]), Pair(value[6], value[7]));
}

// Requires K to be a multiple of eight, codes aligned to 4 bytes and out to 16.
template <typename T>
__global__ void DequantizeAligned(Nf4Weight w, Nf4BookValue book_value, T* out, std::int64_t stride) {
  __shared__ float book[16];
  CopyNf4Book(book_value, book);
  const std::int64_t per_row = w.cols / 8;
  const std::int64_t row_blocks = Nf4RowBlocks(w.cols, w.block);
  const int shift = Nf4ShiftOnDevice(w.block);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < w.rows * per_row; i += step) {
    const std::int64_t row = i / per_row;
    const std::int64_t column = i % per_row * 8;
    const std::uint32_t four = reinterpret_cast<const std::uint32_t*>(w.codes)[i];
    const float absmax = w.absmax[row * row_blocks + (column >> shift)];
    float value[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t byte = four >> (8 * j);
      value[2 * j] = __fmul_rn(book[byte >> 4 & 15u], absmax);
      value[2 * j + 1] = __fmul_rn(book[byte & 15u], absmax);
    }
    Store8(out + row * stride + column, value);
  }
}

// Any shape: one byte per thread.
template <typename T>
__global__ void DequantizeBytes(Nf4Weight w, Nf4BookValue book_value, T* out, std::int64_t stride) {
  __shared__ float book[16];
  CopyNf4Book(book_value, book);
  const std::int64_t row_bytes = Nf4RowBytes(w.cols);
  const std::int64_t row_blocks = Nf4RowBlocks(w.cols, w.block);
  const int shift = Nf4ShiftOnDevice(w.block);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < w.rows * row_bytes; i += step) {
    const std::int64_t row = i / row_bytes;
    const std::int64_t column = i % row_bytes * 2;
    const unsigned byte = w.codes[i];
    const float absmax = w.absmax[row * row_blocks + (column >> shift)];
    StoreElement(out + row * stride + column, __fmul_rn(book[byte >> 4], absmax));
    if (column + 1 < w.cols) StoreElement(out + row * stride + column + 1, __fmul_rn(book[byte & 15u], absmax));
  }
}

template <typename T>
void Dequantize(const Nf4Weight& w, const Matrix& out, cudaStream_t stream) {
  T* to = out.Row<T>(0);
  const bool aligned = w.cols % 8 == 0 && out.stride % 8 == 0 && IsAligned(w.codes, 4) && IsAligned(to, 16);
  const Nf4BookValue book = MakeNf4BookValue();
  if (aligned) {
    DequantizeAligned<<<GridFor(w.rows * w.cols / 8), kCudaThreads, 0, stream>>>(w, book, to, out.stride);
  } else {
    DequantizeBytes<<<GridFor(w.rows * Nf4RowBytes(w.cols)), kCudaThreads, 0, stream>>>(w, book, to, out.stride);
  }
}

}  // namespace

LaunchResult DequantizeNf4OnCuda(const Nf4Weight& w, const Matrix& out, const Stream& stream, const char* name) {
  if (out.dtype == DType::kF32) {
    Dequantize<float>(w, out, CudaStreamOf(stream));
  } else {
    Dequantize<BF16>(w, out, CudaStreamOf(stream));
  }
  return Launched(stream, name);
}

LaunchResult DequantizeNf4Cuda(const DequantizeNf4Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  return DequantizeNf4OnCuda(args.w, args.out, stream, "dequantize_nf4");
}

}  // namespace nibble::kernels
