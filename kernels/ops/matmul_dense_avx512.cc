#include "kernels/ops/matmul_dense_table.h"
#include "kernels/ops/matmul_dense_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult MatmulDenseAvx512(const MatmulDenseArgs& args, const Stream& stream) {
  return MatmulDenseVec<Vec16Avx512, 6, 24>(args, stream);
}

}  // namespace nibble::kernels
