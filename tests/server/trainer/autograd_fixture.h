// Fixture for tests of autograd functions: random tensors, and a context with torch's product.
#pragma once
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "server/trainer/autograd.h"
#include "server/trainer/torch_runtime.h"

namespace nibble::trainer {

inline torch::Tensor Random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(shape);
}

// The largest |got - want|, divided by the largest |want|. `want` is the formula in f64.
inline double Distance(const torch::Tensor& got, const torch::Tensor& want) {
  const torch::Tensor w = want.to(torch::kFloat64);
  return ((got.to(torch::kFloat64) - w).abs().max() / w.abs().max().clamp_min(1e-30)).item<double>();
}

class AutogradTest : public ::testing::Test {
 protected:
  AutogradTest() {
    context_.scratch = torch::empty({1 << 16});
    context_.stream.library = library_.get();
  }

  // The gradients of sum(y * weights) to the leaves.
  static std::vector<torch::Tensor> Gradients(const torch::Tensor& y, const torch::Tensor& weights,
                                              const std::vector<torch::Tensor>& leaves) {
    return torch::autograd::grad({(y * weights.to(y.scalar_type())).sum()}, leaves);
  }

  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  TrainingContext context_;
};

inline constexpr double kF32Bound = 2e-5;  // kernel and formula differ by some hundred roundings in f32 at most

}  // namespace nibble::trainer
