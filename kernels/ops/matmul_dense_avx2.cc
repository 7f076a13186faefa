#include "kernels/ops/matmul_dense_table.h"
#include "kernels/ops/matmul_dense_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult MatmulDenseAvx2(const MatmulDenseArgs& args, const Stream& stream) {
  return MatmulDenseVec<Vec16Avx2, 6, 6>(args, stream);
}

}  // namespace nibble::kernels
