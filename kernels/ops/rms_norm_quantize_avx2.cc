#include "kernels/ops/rms_norm_quantize_table.h"
#include "kernels/ops/rms_norm_quantize_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult RmsNormQuantizeAvx2(const RmsNormQuantizeArgs& args, const Stream& stream) {
  return RmsNormQuantizeVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
