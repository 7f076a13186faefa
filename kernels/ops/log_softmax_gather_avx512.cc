#include "kernels/ops/log_softmax_gather_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult LogSoftmaxGatherAvx512(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  return LogSoftmaxGatherVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
