#include "kernels/ops/silu_mul_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult SiluMulAvx512(const SiluMulArgs& args, const Stream& stream) {
  return SiluMulVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
