#include "kernels/ops/silu_mul_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult SiluMulCpu(const SiluMulArgs& args, const Stream& stream) { return SiluMulVec<Vec16Plain>(args, stream); }

}  // namespace nibble::kernels
