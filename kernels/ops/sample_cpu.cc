#include "kernels/ops/sample_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult SampleCpu(const SampleArgs& args, const Stream& stream) { return SampleVec<Vec16Plain>(args, stream); }

}  // namespace nibble::kernels
