#include "kernels/ops/add_vec.h"
#include "kernels/vec16_avx512.h"

namespace nibble::kernels {

LaunchResult AddAvx512(const AddArgs& args, const Stream& stream) { return AddVec<Vec16Avx512>(args, stream); }

}  // namespace nibble::kernels
