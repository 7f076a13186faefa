// cuBLASLt multiplies operands of one type: if only one of x and w is f32, the other is widened first.
#include "kernels/cuda/float_matmul.cuh"
#include "kernels/ops/matmul/matmul_library_launch.h"

namespace nibble::kernels {

LaunchResult MatmulLibraryCuda(const MatmulLibraryArgs& args, const Stream& stream) {
  if (const LaunchResult context = NeedsContext(stream); context.code != LaunchCode::kOk) return context;
  const DeviceGuard guard(stream.cuda->device_index());
  const FloatKernelNames names = {"cublaslt:matmul", "matmul_library_widen", "matmul_library_epilogue"};
  const DType type = args.x.dtype == args.w.dtype ? args.x.dtype : DType::kF32;
  const FloatProduct product{args.x, args.w, type, args.bias, args.accumulate, args.y};
  return MultiplyFloatRows(product, stream, names,
                           [&](const Matrix& w) { return CopyFloatRows(args.w, w, stream, names.widen); });
}

}  // namespace nibble::kernels
