// Gradients of large parameters are added to the gradient that the parameter holds (HoldGradients). If a backward
// function returned such a gradient, it would take as much memory as the parameter, and torch would read and write it
// once more to add it.
#pragma once
#include <torch/types.h>

#include "kernels/stream.h"

namespace nibble::trainer {

// The f32 gradient that `parameter` holds. Undefined if it holds none, or one in bf16, which would be rounded after
// each part that is added: a function then returns its gradient to autograd.
torch::Tensor HeldGradient(const torch::Tensor& parameter);

// Where the parts of a parameter's gradient are added up, in f32: in HeldGradient if there is one, else in zeros.
class GradientSum {
 public:
  explicit GradientSum(const torch::Tensor& parameter);

  torch::Tensor& sum() { return sum_; }
  // The gradient to return to autograd: the sum, or undefined if the parameter holds it already.
  torch::Tensor Rest() const { return held_ ? torch::Tensor() : sum_; }

 private:
  const bool held_;
  torch::Tensor sum_;
};

// sum [N, K] f32 += a^T b. a [T, N] and b [T, K] have the same type: f32, or bf16, whose product is rounded before it
// is added. A bf16 product is computed for a slice of rows of the sum at a time: it takes 4 MB, and torch may copy the
// slice's columns of a. Throws the errors of torch and of the kernel.
void AddProduct(const torch::Tensor& sum, const torch::Tensor& a, const torch::Tensor& b,
                const kernels::Stream& stream);

// The gradient a^T b of `parameter`: adds it to HeldGradient and returns an undefined tensor; without a held gradient
// in f32, returns it in f32.
torch::Tensor AddOrReturnProduct(const torch::Tensor& parameter, const torch::Tensor& a, const torch::Tensor& b,
                                 const kernels::Stream& stream);

}  // namespace nibble::trainer
