#include "kernels/formats/dense.h"

namespace nibble::kernels {
namespace {

template <typename T>
void Pack(const T* weight, std::int64_t n, std::int64_t k, T* panels) {
  for (std::int64_t panel = 0; panel * 16 < n; ++panel) {
    for (std::int64_t lane = 0; lane < 16; ++lane) {
      const std::int64_t row = panel * 16 + lane;
      T* out = panels + panel * 16 * k + lane;
      for (std::int64_t i = 0; i < k; ++i) out[i * 16] = row < n ? weight[row * k + i] : T{};
    }
  }
}

}  // namespace

void PackDenseWeight(const void* weight, DType dtype, std::int64_t n, std::int64_t k, void* panels) {
  if (SizeOf(dtype) == 4) {
    Pack(static_cast<const std::uint32_t*>(weight), n, k, static_cast<std::uint32_t*>(panels));
  } else {
    Pack(static_cast<const std::uint16_t*>(weight), n, k, static_cast<std::uint16_t*>(panels));
  }
}

}  // namespace nibble::kernels
