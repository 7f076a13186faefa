#include "kernels/ops/rms_norm_table.h"
#include "kernels/ops/rms_norm_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult RmsNormAvx2(const RmsNormArgs& args, const Stream& stream) {
  return RmsNormVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
