#include "kernels/ops/log_softmax_gather_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult LogSoftmaxGatherAvx2(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  return LogSoftmaxGatherVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
