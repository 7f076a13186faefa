#include "kernels/ops/ternarise_backward_table.h"
#include "kernels/ops/ternarise_backward_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult TernariseBackwardAvx512(const TernariseBackwardArgs& args, const Stream& stream) {
  return TernariseBackwardVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
