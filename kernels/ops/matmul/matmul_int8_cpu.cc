// Plain loops: the reference that the fast paths must equal. formats/int8.h describes the layout of w.tiles.
#include "kernels/ops/matmul/integer_product_cpu.h"
#include "kernels/ops/matmul/matmul_int8_table.h"

namespace nibble::kernels {

LaunchResult MatmulInt8Cpu(const MatmulInt8Args& args, const Stream& stream) {
  return IntegerProductCpu(
      args, stream,
      [&](std::int64_t row, std::int64_t k) { return std::int32_t{args.x.codes[row * args.x.stride + k]}; },
      [&](std::int64_t n, std::int64_t k) {
        return std::int32_t{args.w.tiles[(n / 16 * (args.w.padded_k / 4) + k / 4) * 64 + n % 16 * 4 + k % 4]};
      });
}

}  // namespace nibble::kernels
