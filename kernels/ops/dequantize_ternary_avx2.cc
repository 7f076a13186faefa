#include "kernels/ops/dequantize_ternary_table.h"
#include "kernels/ops/dequantize_ternary_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult DequantizeTernaryAvx2(const DequantizeTernaryArgs& args, const Stream& stream) {
  return DequantizeTernaryVec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
