#include "kernels/ops/cross_entropy_vec.h"
#include "kernels/vec16_plain.h"

namespace nibble::kernels {

LaunchResult CrossEntropyCpu(const CrossEntropyArgs& args, const Stream& stream) {
  return CrossEntropyVec<Vec16Plain>(args, stream);
}

}  // namespace nibble::kernels
