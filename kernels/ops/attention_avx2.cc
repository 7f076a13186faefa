#include "kernels/ops/attention_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

// A Vec takes two of the 16 registers; two are left for a broadcast.
LaunchResult AttentionAvx2(const AttentionArgs& args, const Stream& stream) {
  return TiledAttention<Vec16Avx2, /*kMaxBlock=*/6, /*kRegisters=*/7>::Run(args, stream);
}

}  // namespace nibble::kernels
