#include "server/model/dora.h"

namespace nibble::model {

void ApplyDora(const kernels::Matrix& y, const float* factor, const float* bias, const kernels::Stream& stream) {
  constexpr std::int64_t kRowGrain = 16;  // minimum rows per thread
  stream.ParallelFor(y.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* row = y.Row<float>(r);
      for (std::int64_t i = 0; i < y.cols; ++i) row[i] *= factor[i];
      if (bias == nullptr) continue;
      for (std::int64_t i = 0; i < y.cols; ++i) row[i] += bias[i];
    }
  });
}

}  // namespace nibble::model
