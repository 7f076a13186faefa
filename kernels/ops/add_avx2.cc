#include "kernels/ops/add_vec.h"
#include "kernels/vec16_avx2.h"

namespace nibble::kernels {

LaunchResult AddAvx2(const AddArgs& args, const Stream& stream) { return AddVec<Vec16Avx2>(args, stream); }

}  // namespace nibble::kernels
