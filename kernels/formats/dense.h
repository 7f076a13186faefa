// A float weight [N, K] as matmul_dense reads it: panels of 16 outputs, so that SIMD lanes are outputs and each output
// is one multiply-add chain over k in order. Element ((n / 16) * K + k) * 16 + n % 16 holds w[n, k]; rows past N are 0.
#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace nibble::kernels {

inline constexpr std::int64_t kDensePanelRows = 16;

struct PackedDenseWeight {
  const void* panels = nullptr;  // [ceil(N/16), K, 16], f32 or bf16
  DType dtype = DType::kF32;
  std::int64_t rows = 0;  // N
  std::int64_t cols = 0;  // K
};

constexpr std::int64_t PackedDenseElements(std::int64_t n, std::int64_t k) {
  return (n + kDensePanelRows - 1) / kDensePanelRows * kDensePanelRows * k;
}

// weight [N, K] row-major, f32 or bf16 -> panels of the same dtype. No rounding.
void PackDenseWeight(const void* weight, DType dtype, std::int64_t n, std::int64_t k, void* panels);

}  // namespace nibble::kernels
