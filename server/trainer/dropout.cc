#include "server/trainer/dropout.h"

#include <torch/types.h>

#include "kernels/philox.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

constexpr std::uint64_t kDropoutStream = 0x64726f706f7574;  // "dropout"; initial adapters use the streams 0, 1, ...
constexpr std::int64_t kDropoutGrain = 1 << 13;             // minimum elements per thread

template <typename T>
void Scale(const Tensor& x, const Tensor& kept, float factor, const Tensor& out, const kernels::Stream& stream) {
  const T* from = x.data_ptr<T>();
  const bool* keep = kept.data_ptr<bool>();
  T* to = out.data_ptr<T>();
  stream.ParallelFor(kept.numel(), kDropoutGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      to[i] = static_cast<T>(static_cast<float>(from[i]) * (keep[i] ? factor : 0.0f));
  });
}

}  // namespace

Dropout::Dropout(const Tensor& like, double p, DropoutKey key, const kernels::Stream& stream)
    : stream_(stream), kept_(torch::empty(like.sizes(), torch::kBool)), factor_(static_cast<float>(1.0 / (1.0 - p))) {
  bool* kept = kept_.data_ptr<bool>();
  stream_.ParallelFor(kept_.numel(), kDropoutGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      kept[i] = kernels::PhiloxUniform(key.seed, static_cast<std::uint64_t>(i), kDropoutStream + key.stream) >= p;
    }
  });
}

Tensor Dropout::Apply(const Tensor& x) const {
  Tensor out = torch::empty_like(x);
  if (x.scalar_type() == torch::kBFloat16) {
    Scale<at::BFloat16>(x, kept_, factor_, out, stream_);
  } else {
    Scale<float>(x, kept_, factor_, out, stream_);
  }
  return out;
}

}  // namespace nibble::trainer
