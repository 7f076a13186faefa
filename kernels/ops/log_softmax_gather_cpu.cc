#include "kernels/ops/log_softmax_gather_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult LogSoftmaxGatherCpu(const LogSoftmaxGatherArgs& args, const Stream& stream) {
  return LogSoftmaxGatherVec<Vec16Plain>(args, stream);
}

}  // namespace nibble::kernels
