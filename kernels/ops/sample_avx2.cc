#include "kernels/ops/sample_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult SampleAvx2(const SampleArgs& args, const Stream& stream) { return SampleVec<Vec16Avx2>(args, stream); }

}  // namespace nibble::kernels
