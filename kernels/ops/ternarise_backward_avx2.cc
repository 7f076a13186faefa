#include "kernels/ops/ternarise_backward_table.h"
#include "kernels/ops/ternarise_backward_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult TernariseBackwardAvx2(const TernariseBackwardArgs& args, const Stream& stream) {
  return TernariseBackwardVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
