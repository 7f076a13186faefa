// Dropout whose masks are drawn by position, so that a recomputed layer draws the same mask.
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "kernels/stream.h"

namespace nibble::trainer {

// Identifies a dropout mask: the same seed, micro-batch and linear give the same mask, also when a layer is recomputed.
struct DropoutKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // one per pair of a micro-batch of the run and a linear (KeyOf, adapter_linear.h)
};

// The elements of a tensor that are kept.
class Dropout {
 public:
  // A mask for tensors of the shape of `like`. `p`: probability that an element is dropped. `stream` must outlive this
  // object.
  Dropout(const torch::Tensor& like, double p, DropoutKey key, const kernels::Stream& stream);

  // x / (1 - p) where kept, 0 where dropped. The factor 1 / (1 - p) and the product are f32; only the product is
  // rounded to bf16, because a factor in bf16 would shift every mean. x is f32 or bf16, and contiguous.
  torch::Tensor Apply(const torch::Tensor& x) const;

 private:
  const kernels::Stream& stream_;
  torch::Tensor kept_;
  const float factor_;
};

}  // namespace nibble::trainer
