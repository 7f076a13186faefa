// The AVX-512 path of matmul_bf16: PairProduct on machines with vdpbf16ps, plain loops on the others.
#include <immintrin.h>

#include "kernels/ops/matmul/matmul_bf16_table.h"
#include "kernels/pair_product.h"

namespace nibble::kernels {
namespace {

// The Weights class of PairProduct for a dense w.
class DensePairs {
 public:
  explicit DensePairs(const ConstMatrix& w) : w_(w) {}
  std::int64_t rows() const { return w_.rows; }
  void Load(std::int64_t row, std::int64_t block, __m512i* low, __m512i* high) const {
    const BF16* from = w_.Row<BF16>(row) + block * 64;
    const std::int64_t left = w_.cols - block * 64;
    *low = _mm512_maskz_loadu_epi16(First(left), from);
    *high = left > 32 ? _mm512_maskz_loadu_epi16(First(left - 32), from + 32) : _mm512_setzero_si512();
  }

 private:
  static __mmask32 First(std::int64_t count) { return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1; }

  const ConstMatrix w_;
};

}  // namespace

LaunchResult MatmulBf16Avx512(const MatmulBf16Args& args, const Stream& stream) {
  if (!HasBf16Dot()) return MatmulBf16Cpu(args, stream);
  return PairProduct<DensePairs>(args.x, DensePairs(args.w), nullptr, args.y, stream).Run();
}

}  // namespace nibble::kernels
