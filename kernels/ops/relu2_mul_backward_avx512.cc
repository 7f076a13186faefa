#include "kernels/ops/relu2_mul_backward_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult Relu2MulBackwardAvx512(const Relu2MulBackwardArgs& args, const Stream& stream) {
  return Relu2MulBackwardVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
