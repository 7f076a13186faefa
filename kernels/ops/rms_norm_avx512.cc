#include "kernels/ops/rms_norm_table.h"
#include "kernels/ops/rms_norm_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult RmsNormAvx512(const RmsNormArgs& args, const Stream& stream) {
  return RmsNormVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
