// The CUDA path of rms_norm_quantize.
#include "kernels/cuda/int8_rows.cuh"
#include "kernels/ops/norm/rms_norm_quantize_launch.h"

namespace nibble::kernels {
namespace {

// A Source of cuda/int8_rows.cuh: normalizes each row before it is quantized.
template <typename T>
struct NormSource {
  const T* x;
  std::int64_t stride;
  const float* weight;
  float eps;
  float* rstd;  // or null

  __device__ float Raw(std::int64_t row, int k) const { return LoadElement(x + row * stride + k); }
  // 1 / sqrt(mean(x^2) + eps), by IEEE square root and division. Thread 0 also stores it in rstd.
  template <typename Get>
  __device__ float Prepare(Get get, std::int64_t row, int cols, Int8RowShared* shared) const {
    const float sum = LaneSum(get, cols, [](float acc, float v) { return __fmaf_rn(v, v, acc); }, shared);
    const float row_rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(cols)), eps)));
    if (rstd != nullptr && threadIdx.x == 0) rstd[row] = row_rstd;
    return row_rstd;
  }
  __device__ float Finish(float raw, int k, float row_rstd) const {
    return __fmul_rn(__fmul_rn(raw, row_rstd), weight[k]);
  }
};

}  // namespace

LaunchResult RmsNormQuantizeCuda(const RmsNormQuantizeArgs& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  constexpr const char* kName = "rms_norm_quantize";
  if (args.x.dtype == DType::kF32) {
    const NormSource<float> source{args.x.Row<float>(0), args.x.stride, args.weight, args.eps, args.rstd};
    return LaunchQuantizeInt8Rows(source, args.out, args.max_outliers, args.how, stream, kName);
  }
  const NormSource<BF16> source{args.x.Row<BF16>(0), args.x.stride, args.weight, args.eps, args.rstd};
  return LaunchQuantizeInt8Rows(source, args.out, args.max_outliers, args.how, stream, kName);
}

}  // namespace nibble::kernels
