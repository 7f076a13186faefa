// The AVX paths of double_quantize: one template over the vectors of kernels/vec16_*.h.
#pragma once
#include "kernels/ops/quantize/double_quantize_blocks.h"

namespace nibble::kernels {

template <typename Vec>
struct DoubleQuantizeBlocks {
  static float MaxAbs(const float* absmax, int n, float offset) {
    const Vec mean = Vec::Set1(offset);
    Vec top = Vec::Zero();
    int i = 0;
    for (; i + Vec::kLanes <= n; i += Vec::kLanes) top = Vec::Max(Vec::Abs(Vec::Load(absmax + i) - mean), top);
    if (i < n) top = Vec::Max(Vec::Abs(Vec::LoadPartial(absmax + i, n - i, offset) - mean), top);
    return top.ReduceMax();
  }
  static void Codes(const float* absmax, int n, float offset, float factor, std::int8_t* codes) {
    const Vec mean = Vec::Set1(offset);
    const Vec scale = Vec::Set1(factor);
    const Vec low = Vec::Set1(-128.0f);
    const Vec high = Vec::Set1(127.0f);
    for (int i = 0; i < n; i += Vec::kLanes) {
      const int left = std::min(n - i, Vec::kLanes);
      const Vec x = left == Vec::kLanes ? Vec::Load(absmax + i) : Vec::LoadPartial(absmax + i, left, offset);
      const Vec code = Vec::Min(Vec::Max(Vec::Rne((x - mean) * scale), low), high);
      if (left == Vec::kLanes) {
        code.StoreCodes(codes + i);
      } else {
        std::int8_t last[Vec::kLanes];
        code.StoreCodes(last);
        std::copy_n(last, left, codes + i);
      }
    }
  }
};

template <typename Vec>
LaunchResult DoubleQuantizeVec(const DoubleQuantizeArgs& args, const Stream& stream) {
  return DoubleQuantizeOn<DoubleQuantizeBlocks<Vec>>(args, stream);
}

}  // namespace nibble::kernels
