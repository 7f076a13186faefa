#include "kernels/ops/silu_mul_backward_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult SiluMulBackwardAvx512(const SiluMulBackwardArgs& args, const Stream& stream) {
  return SiluMulBackwardVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
