#include "kernels/ops/rope_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult RopeAvx512(const RopeArgs& args, const Stream& stream) { return RopeVec<Vec16Avx512>(args, stream); }

}  // namespace nibble::kernels
