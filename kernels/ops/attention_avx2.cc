#include "kernels/ops/attention_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

// A Vec is two of the 16 registers.
LaunchResult AttentionAvx2(const AttentionArgs& args, const Stream& stream) {
  return TiledAttention<Vec16Avx2, /*kAccumulators=*/4>::Run(args, stream);
}

}  // namespace nibble::kernels
