#include "kernels/ops/relu2_mul_backward_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult Relu2MulBackwardAvx2(const Relu2MulBackwardArgs& args, const Stream& stream) {
  return Relu2MulBackwardVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
