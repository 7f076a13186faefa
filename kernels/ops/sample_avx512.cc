#include "kernels/ops/sample_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult SampleAvx512(const SampleArgs& args, const Stream& stream) { return SampleVec<Vec16Avx512>(args, stream); }

}  // namespace nibble::kernels
