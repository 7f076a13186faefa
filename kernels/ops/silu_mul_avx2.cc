#include "kernels/ops/silu_mul_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult SiluMulAvx2(const SiluMulArgs& args, const Stream& stream) { return SiluMulVec<Vec16Avx2>(args, stream); }

}  // namespace nibble::kernels
