#include "kernels/ops/relu2_mul_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult Relu2MulCpu(const Relu2MulArgs& args, const Stream& stream) {
  return Relu2MulVec<Vec16Plain>(args, stream);
}

}  // namespace nibble::kernels
