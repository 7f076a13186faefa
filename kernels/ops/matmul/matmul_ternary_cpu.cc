// Plain loops: the reference that the fast paths must equal.
#include "kernels/ops/matmul/integer_product_cpu.h"
#include "kernels/ops/matmul/matmul_ternary_table.h"

namespace nibble::kernels {

LaunchResult MatmulTernaryCpu(const MatmulTernaryArgs& args, const Stream& stream) {
  const QuantizedRows& x = args.x;
  return IntegerProductCpu(
      args, stream,
      [&](std::int64_t row, std::int64_t k) {
        const std::int64_t at = row * x.stride + k;
        return x.wide_codes != nullptr ? std::int32_t{x.wide_codes[at]} : std::int32_t{x.codes[at]};
      },
      [&](std::int64_t n, std::int64_t k) { return std::int32_t{TernaryCode(args.w, n, k)}; });
}

}  // namespace nibble::kernels
