#include "kernels/ops/silu_mul_backward_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult SiluMulBackwardAvx2(const SiluMulBackwardArgs& args, const Stream& stream) {
  return SiluMulBackwardVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
