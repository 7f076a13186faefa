#include "kernels/formats/dense.h"

#include <algorithm>

namespace nibble::kernels {
namespace {

template <typename T>
void Pack(const T* weight, std::int64_t n, std::int64_t k, T* panels) {
  for (std::int64_t panel = 0; panel * kDensePanelRows < n; ++panel) {
    const T* rows = weight + panel * kDensePanelRows * k;
    T* out = panels + panel * kDensePanelRows * k;
    const std::int64_t count = std::min(n - panel * kDensePanelRows, kDensePanelRows);
    for (std::int64_t i = 0; i < k; ++i, out += kDensePanelRows) {
      for (std::int64_t lane = 0; lane < count; ++lane) out[lane] = rows[lane * k + i];
      for (std::int64_t lane = count; lane < kDensePanelRows; ++lane) out[lane] = T{};
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
