#include "kernels/ops/ternarise_table.h"
#include "kernels/ops/ternarise_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult TernariseAvx512(const TernariseArgs& args, const Stream& stream) {
  return TernariseVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
