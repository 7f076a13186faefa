#include "kernels/ops/rope_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult RopeAvx2(const RopeArgs& args, const Stream& stream) { return RopeVec<Vec16Avx2>(args, stream); }

}  // namespace nibble::kernels
