#include "kernels/ops/dequantize_int8_table.h"
#include "kernels/ops/dequantize_int8_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult DequantizeInt8Avx512(const DequantizeInt8Args& args, const Stream& stream) {
  return DequantizeInt8Vec<Vec16Avx512>(args, stream);
}

}  // namespace nibble::kernels
