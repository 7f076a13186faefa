#include "kernels/ops/relu2_mul_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult Relu2MulAvx2(const Relu2MulArgs& args, const Stream& stream) {
  return Relu2MulVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
