// The CUDA path of dequantize_int8.
#include "kernels/cuda/device.cuh"
#include "kernels/ops/quantize/dequantize_int8_launch.h"

namespace nibble::kernels {
namespace {

template <typename T>
__global__ void Dequantize(const std::int8_t* codes, std::int64_t codes_stride, const float* scale, std::int64_t rows,
                           std::int64_t k, T* out, std::int64_t stride) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * k; i += step) {
    const std::int64_t row = i / k;
    const std::int64_t column = i % k;
    StoreElement(out + row * stride + column,
                 __fmul_rn(static_cast<float>(codes[row * codes_stride + column]), scale[row]));
  }
}

}  // namespace

LaunchResult DequantizeInt8Cuda(const DequantizeInt8Args& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  const ConstMatrix& codes = args.codes;
  const std::int64_t n = codes.rows * codes.cols;
  if (n == 0) return {};
  const std::int8_t* from = codes.Row<std::int8_t>(0);
  if (args.out.dtype == DType::kF32) {
    Dequantize<<<GridFor(n), kCudaThreads, 0, CudaStreamOf(stream)>>>(
        from, codes.stride, args.scale, codes.rows, codes.cols, args.out.Row<float>(0), args.out.stride);
  } else {
    Dequantize<<<GridFor(n), kCudaThreads, 0, CudaStreamOf(stream)>>>(
        from, codes.stride, args.scale, codes.rows, codes.cols, args.out.Row<BF16>(0), args.out.stride);
  }
  return Launched(stream, "dequantize_int8");
}

}  // namespace nibble::kernels
