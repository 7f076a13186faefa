#include "kernels/ops/silu_mul_backward_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult SiluMulBackwardCpu(const SiluMulBackwardArgs& args, const Stream& stream) {
  return SiluMulBackwardVec<Vec16Plain>(args, stream);
}

}  // namespace nibble::kernels
