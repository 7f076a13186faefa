#include "kernels/ops/relu2_mul_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult Relu2MulAvx512(const Relu2MulArgs& args, const Stream& stream) {
  return Relu2MulVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
