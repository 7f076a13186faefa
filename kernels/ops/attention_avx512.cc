#include "kernels/ops/attention_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

// 16 accumulators of 32 registers.
LaunchResult AttentionAvx512(const AttentionArgs& args, const Stream& stream) {
  return TiledAttention<Vec16Avx512, /*kAccumulators=*/16>::Run(args, stream);
}

}  // namespace nibble::kernels
