#include "kernels/ops/attention_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

// One of the 32 registers is for a broadcast.
LaunchResult AttentionAvx512(const AttentionArgs& args, const Stream& stream) {
  return TiledAttention<Vec16Avx512, /*kMaxBlock=*/10, /*kRegisters=*/31>::Run(args, stream);
}

}  // namespace nibble::kernels
