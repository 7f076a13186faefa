#include "kernels/ops/double_quantize_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult DoubleQuantizeAvx512(const DoubleQuantizeArgs& args, const Stream& stream) {
  return DoubleQuantizeOn<DoubleQuantizeVec<Vec16Avx512>>(args, stream);
}

}  // namespace nibble::kernels
