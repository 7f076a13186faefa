#include "kernels/ops/cross_entropy_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult CrossEntropyAvx2(const CrossEntropyArgs& args, const Stream& stream) {
  return CrossEntropyVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
