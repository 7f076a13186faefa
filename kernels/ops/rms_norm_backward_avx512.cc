#include "kernels/ops/rms_norm_backward_table.h"
#include "kernels/ops/rms_norm_backward_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult RmsNormBackwardAvx512(const RmsNormBackwardArgs& args, const Stream& stream) {
  return RmsNormBackwardVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
