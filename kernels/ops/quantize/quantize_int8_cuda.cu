// The CUDA path of quantize_int8.
#include "kernels/cuda/int8_rows.cuh"
#include "kernels/ops/quantize/quantize_int8_launch.h"

namespace nibble::kernels {
namespace {

// A Source of cuda/int8_rows.cuh: quantizes the elements as they are.
template <typename T>
struct RowSource {
  const T* x;
  std::int64_t stride;

  __device__ float Raw(std::int64_t row, int k) const { return LoadElement(x + row * stride + k); }
  template <typename Get>
  __device__ float Prepare(Get, std::int64_t, int, Int8RowShared*) const {
    return 0.0f;
  }
  __device__ float Finish(float raw, int, float) const { return raw; }
};

}  // namespace

LaunchResult QuantizeInt8Cuda(const QuantizeInt8Args& args, const Stream& stream) {
  if (args.how.stochastic.enabled) return {LaunchCode::kUnimplemented, "no CUDA path for stochastic rounding"};
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  if (args.x.dtype == DType::kF32) {
    const RowSource<float> source{args.x.Row<float>(0), args.x.stride};
    return LaunchQuantizeInt8Rows(source, args.out, args.max_outliers, args.how, stream, args.counted_as);
  }
  const RowSource<BF16> source{args.x.Row<BF16>(0), args.x.stride};
  return LaunchQuantizeInt8Rows(source, args.out, args.max_outliers, args.how, stream, args.counted_as);
}

}  // namespace nibble::kernels
