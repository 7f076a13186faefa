#include "kernels/ops/relu2_mul_backward_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult Relu2MulBackwardCpu(const Relu2MulBackwardArgs& args, const Stream& stream) {
  return Relu2MulBackwardVec<Vec16Plain>(args, stream);
}

}  // namespace nibble::kernels
