#include "server/trainer/held_gradient.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/isa.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/chunked_loss.h"
#include "server/trainer/fixed_order.h"
#include "server/trainer/float_linear.h"
#include "server/trainer/int8_linear.h"
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
  EXPECT_LT(Distance(parameter.grad(), product + 1), kF32Bound);

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
  // The product is rounded to bf16 once (2^-8); 1e-5 covers the rounding of the sum to f32.
  EXPECT_LE(((got - sum).to(torch::kFloat64) - product).abs().sub(product.abs() * 0x1p-8).max().item<double>(), 1e-5);
  AddProduct(got.narrow(0, 0, 0), a.narrow(1, 0, 0), b, context_.stream);  // no rows
}

// A function adds to a held gradient what it returns without one.
TEST_F(HeldGradientTest, FunctionsAddWhatAutogradWouldGet) {
  const std::vector<std::int32_t> ids = {3, 0, 3, 7, 3, 0, 3};
  std::vector<std::int32_t> targets;
  for (std::int32_t t = 0; t < 300; ++t) targets.push_back(t % 5 == 0 ? -1 : t % 48);  // more than one chunk of rows
  const Tensor x = Random({300, 32}, 4).requires_grad_();
  const Tensor bf16_x = x.detach().to(torch::kBFloat16).requires_grad_();
  double sum = 0;
  DenseWeight dense;
  TrainedHead head;
  FloatLinear linear;
  BitWeight bit;
  const BitLinearOptions bit_options;
  Int8Weight int8;
  Int8LinearOptions int8_options;
  int8_options.grad_weight = false;
  const bool fast_bf16 = kernels::DetectIsa() >= kernels::Isa::kAvx512;  // elsewhere torch's products of bf16 are slow
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    if (type == torch::kBFloat16 && !fast_bf16) continue;
    context_.scratch = torch::empty({1 << 16}, type);
    const auto expect_same = [&](const char* name, const auto& apply) {
      Tensor master = Random({48, 32}, 5).requires_grad_();
      const Tensor y = apply(master);
      // A loss starts from 1, because a trainer calls backward() on it.
      const auto root = [&](const Tensor& of) { return of.dim() == 0 ? of : (of * 0.75).sum(); };
      const Tensor returned = torch::autograd::grad({root(y)}, {master})[0], before = Random({48, 32}, 6);
      master.mutable_grad() = before.clone();
      root(apply(master)).backward();
      EXPECT_LT(Distance(master.grad() - before, returned), type == torch::kFloat32 ? 1e-5 : 0x1p-8) << name;
    };
    expect_same("embedding",
                [&](const Tensor& master) { return ApplyEmbedding(ids, master.detach(), master, context_); });
    expect_same("dense loss", [&](const Tensor& master) {
      dense.master = master;
      dense.Round(context_.stream);
      return ApplyDenseLoss(x, dense, targets, 0.25, &sum, context_);
    });
    expect_same("dense linear", [&](const Tensor& master) {
      dense.master = master;
      dense.Round(context_.stream);
      return ApplyDenseLinear(x, dense, {}, context_);
    });
    expect_same("trained head", [&](const Tensor& master) {
      head.master = master;
      head.Read(type, type);
      return ApplyTrainedHeadLoss(type == torch::kFloat32 ? x : bf16_x, head, targets, 0.25, &sum, context_);
    });
    expect_same("float linear", [&](const Tensor& master) {
      linear = {master, {}, {}};
      linear.Round();
      return ApplyFloatLinear(type == torch::kFloat32 ? x : bf16_x, linear, context_);
    });
    expect_same("ternary linear", [&](const Tensor& master) {
      bit.master = master;
      bit.Ternarize(context_.stream);
      return ApplyBitLinear({x, nullptr}, bit, bit_options, context_);
    });
    expect_same("int8 linear", [&](const Tensor& master) {
      int8.master = master;
      int8.Quantize(int8_options, type == torch::kBFloat16, context_.stream);
      return ApplyInt8Linear({x, nullptr}, int8, int8_options, 0, context_);
    });
  }
}

// A gradient that was added in the forward pass cannot be scaled any more.
TEST_F(HeldGradientTest, LossMustStartFromOne) {
  const Tensor x = Random({3, 32}, 4).requires_grad_();
  Tensor master = Random({48, 32}, 5).requires_grad_();
  master.mutable_grad() = torch::zeros_like(master);
  double sum = 0;
  DenseWeight dense;
  dense.master = master;
  dense.Round(context_.stream);
  EXPECT_THROW((ApplyDenseLoss(x, dense, {1, 2, 3}, 1.0, &sum, context_) * 2).backward(), std::logic_error);
  TrainedHead head;
  head.master = master;
  head.Read(torch::kFloat32, torch::kFloat32);
  EXPECT_THROW((ApplyTrainedHeadLoss(x, head, {1, 2, 3}, 1.0, &sum, context_) * 2).backward(), std::logic_error);
}

}  // namespace
}  // namespace nibble::trainer
