#include "server/trainer/held_gradient.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "server/trainer/chunked_loss.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/float_linear.h"
#include "tests/server/trainer/autograd_fixture.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

class HeldGradientTest : public AutogradTest {};

TEST_F(HeldGradientTest, OnlyAnF32GradientIsAddedTo) {
  const Tensor a = Random({5, 7}, 1), b = Random({5, 13}, 2), product = a.t().mm(b);
  Tensor parameter = Random({7, 13}, 3).requires_grad_();
  EXPECT_TRUE(torch::equal(AddOrReturnProduct(parameter, a, b, context_.stream), product));
  parameter.mutable_grad() = torch::ones({7, 13});
  EXPECT_FALSE(AddOrReturnProduct(parameter, a, b, context_.stream).defined());
  EXPECT_LT(Distance(parameter.grad(), product + 1), kF32);

  Tensor bf16 = parameter.detach().to(torch::kBFloat16).requires_grad_();
  bf16.mutable_grad() = torch::ones({7, 13}, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(AddOrReturnProduct(bf16, a, b, context_.stream), product));
  EXPECT_TRUE(torch::equal(bf16.grad(), torch::ones({7, 13}, torch::kBFloat16)));
}

TEST_F(HeldGradientTest, SlicesOfABf16ProductAddUpToTheWhole) {
  const std::int64_t rows = 5000, cols = 1024;  // three slices of at most 2^21 elements
  const Tensor a = Random({3, rows}, 1).to(torch::kBFloat16), b = Random({3, cols}, 2).to(torch::kBFloat16);
  const Tensor sum = Random({rows, cols}, 3);
  const Tensor got = sum.clone();
  AddProduct(got, a, b, context_.stream);
  const Tensor product = a.to(torch::kFloat64).t().mm(b.to(torch::kFloat64));
  // The product is rounded to bf16 once.
  EXPECT_LE(((got - sum).to(torch::kFloat64) - product).abs().sub(product.abs() * 0x1p-8).max().item<double>(), 1e-5);
  AddProduct(got.narrow(0, 0, 0), a.narrow(1, 0, 0), b, context_.stream);  // no rows
}

// Each function that adds to a held gradient gives the gradient that it returns without one.
TEST_F(HeldGradientTest, HoldsWhatAutogradWouldGet) {
  const std::vector<std::int32_t> ids = {3, 0, 3, 7, 3, 0, 3};
  std::vector<std::int32_t> targets;
  for (std::int32_t t = 0; t < 300; ++t) targets.push_back(t % 5 == 0 ? -1 : t % 48);  // more than one chunk of rows
  const Tensor x = Random({300, 32}, 4).requires_grad_();
  double sum = 0;
  DenseWeight dense;
  TrainedHead head;
  FloatLinear linear;
  const auto expect_same = [&](const char* name, const auto& apply) {
    Tensor master = Random({48, 32}, 5).requires_grad_();
    const Tensor y = apply(master), g = Random({1}, 6);
    const std::vector<Tensor> returned = torch::autograd::grad({(y * g).sum()}, {master});
    // A loss starts from 1, because a trainer calls backward() on it.
    const bool is_loss = y.dim() == 0;
    master.mutable_grad() = torch::zeros_like(master);
    const Tensor again = apply(master);
    (is_loss ? again : (again * g).sum()).backward();
    EXPECT_LT(Distance(is_loss ? master.grad() * g : master.grad(), returned[0]), 1e-6) << name;
  };
  expect_same("embedding",
              [&](const Tensor& master) { return ApplyEmbedding(ids, master.detach(), master, context_); });
  expect_same("dense loss", [&](const Tensor& master) {
    dense.master = master;
    dense.Round();
    return ApplyDenseLoss(x, dense, targets, 0.25, &sum, context_);
  });
  expect_same("trained head", [&](const Tensor& master) {
    head.master = master;
    head.Read(torch::kFloat32, torch::kFloat32);
    return ApplyTrainedHeadLoss(x, head, targets, 0.25, &sum, context_);
  });
  expect_same("float linear", [&](const Tensor& master) {
    linear = {master, {}, {}};
    return ApplyFloatLinear(x, linear, context_);
  });
}

}  // namespace
}  // namespace nibble::trainer
