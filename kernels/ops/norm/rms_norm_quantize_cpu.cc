// The reference that the fast paths must equal: the plain loops of rms_norm, then those of quantize_int8.
#include <vector>

#include "kernels/ops/norm/rms_norm_quantize_table.h"
#include "kernels/ops/norm/rms_norm_table.h"
#include "kernels/ops/quantize/quantize_int8_table.h"

namespace nibble::kernels {

LaunchResult RmsNormQuantizeCpu(const RmsNormQuantizeArgs& args, const Stream& stream) {
  std::vector<float> y(static_cast<std::size_t>(args.x.rows * args.x.cols));
  const Matrix normed = MakeMatrix(y.data(), DType::kF32, args.x.rows, args.x.cols);
  const LaunchResult norm = RmsNormCpu({args.x, args.weight, args.eps, normed, args.rstd}, stream);
  if (norm.code != LaunchCode::kOk) return norm;
  return QuantizeInt8Cpu({normed, args.out, args.max_outliers, args.how}, stream);
}

}  // namespace nibble::kernels
