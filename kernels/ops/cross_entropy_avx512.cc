#include "kernels/ops/cross_entropy_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult CrossEntropyAvx512(const CrossEntropyArgs& args, const Stream& stream) {
  return CrossEntropyVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
