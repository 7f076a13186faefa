#include "kernels/ops/quantize_int8_table.h"
#include "kernels/ops/quantize_int8_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult QuantizeInt8Avx2(const QuantizeInt8Args& args, const Stream& stream) {
  return QuantizeInt8Vec<Vec16Avx2>(args, stream);
}

}  // namespace nibble::kernels
