#include "kernels/stream.h"

namespace nibble::kernels {

void Stream::ParallelFor(std::int64_t n, std::int64_t grain,
                         const std::function<void(std::int64_t, std::int64_t)>& body) const {
  if (n <= 0) return;
  if (pool == nullptr) {
    body(0, n);
  } else {
    pool->ParallelFor(n, grain, body);
  }
}

}  // namespace nibble::kernels
