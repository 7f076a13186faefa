#include "kernels/ops/double_quantize_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult DoubleQuantizeAvx2(const DoubleQuantizeArgs& args, const Stream& stream) {
  return DoubleQuantizeOn<DoubleQuantizeVec<Vec16Avx2>>(args, stream);
}

}  // namespace nibble::kernels
