#include "kernels/ops/dequantize_ternary_table.h"
#include "kernels/ops/dequantize_ternary_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult DequantizeTernaryAvx512(const DequantizeTernaryArgs& args, const Stream& stream) {
  return DequantizeTernaryVec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
