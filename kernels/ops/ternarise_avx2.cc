#include "kernels/ops/ternarise_table.h"
#include "kernels/ops/ternarise_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult TernariseAvx2(const TernariseArgs& args, const Stream& stream) {
  return TernariseVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
