#include "server/trainer/fixed_order.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/thread_pool.h"
#include "tests/server/trainer/autograd_fixture.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

// A linear that stays float, with and without a bias, in both types of parameters.
class DenseLinearTest : public AutogradTest, public ::testing::WithParamInterface<torch::ScalarType> {
 protected:
  DenseLinearTest() {
    weight_.master = Random({24, 40}, 2).to(GetParam()).requires_grad_();
    weight_.Round(context_.stream);
  }

  const Tensor x_ = Random({7, 40}, 1).requires_grad_();
  const Tensor bias_ = Random({24}, 3).requires_grad_();
  DenseWeight weight_;
};

// One chain of multiply-adds per output, over k in order, of the rounded weight; the bias is added last.
TEST_P(DenseLinearTest, OutputIsTheChainOfThePlainLoop) {
  const Tensor y = ApplyDenseLinear(x_, weight_, bias_, context_);
  const Tensor rounded = weight_.master.detach().to(torch::kBFloat16).to(torch::kFloat32);
  for (std::int64_t t = 0; t < 7; ++t) {
    for (std::int64_t n = 0; n < 24; ++n) {
      float sum = 0;
      for (std::int64_t k = 0; k < 40; ++k) {
        sum = std::fma(x_[t][k].item<float>(), rounded[n][k].item<float>(), sum);
      }
      EXPECT_EQ(y[t][n].item<float>(), sum + bias_[n].item<float>()) << t << ", " << n;
    }
  }
}

// The gradient passes the rounding of the weight unchanged.
TEST_P(DenseLinearTest, GradientsAreThoseOfTheRoundedWeight) {
  const Tensor g = Random({7, 24}, 4);
  for (const bool has_bias : {false, true}) {
    const Tensor y = ApplyDenseLinear(x_, weight_, has_bias ? bias_ : Tensor(), context_);
    std::vector<Tensor> leaves = {x_, weight_.master};
    if (has_bias) leaves.push_back(bias_);
    const std::vector<Tensor> got = Gradients(y, g, leaves);
    const Tensor g64 = g.to(torch::kFloat64);
    EXPECT_LT(Distance(got[0], g64.mm(weight_.served.to(torch::kFloat64))), kF32Bound);
    EXPECT_EQ(got[1].scalar_type(), GetParam());
    EXPECT_LT(Distance(got[1], g64.t().mm(x_.detach().to(torch::kFloat64))),
              GetParam() == torch::kBFloat16 ? 0x1p-8 : kF32Bound);
    if (has_bias) {
      EXPECT_LT(Distance(got[2], g64.sum(0)), kF32Bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Masters, DenseLinearTest, ::testing::Values(torch::kFloat32, torch::kBFloat16));

// A frozen head keeps no panels. The product makes them for a slice of its rows at a time; the last slice is short and
// ends inside a panel.
TEST_F(AutogradTest, LogitsOfAFrozenHeadHaveTheBitsOfPanels) {
  kernels::ThreadPool pool(3);
  DenseWeight trained, frozen;
  trained.master = Random({2 * 1024 + 37, 40}, 4).requires_grad_();
  frozen.master = trained.master.detach();
  const Tensor hidden = Random({5, 40}, 5);
  for (kernels::ThreadPool* threads : {static_cast<kernels::ThreadPool*>(nullptr), &pool}) {
    context_.stream.pool = threads;
    trained.Round(context_.stream);
    frozen.Round(context_.stream);
    ASSERT_TRUE(trained.panels.defined());
    ASSERT_FALSE(frozen.panels.defined());
    EXPECT_TRUE(torch::equal(DenseLogits(hidden, trained, context_), DenseLogits(hidden, frozen, context_)));
  }
}

}  // namespace
}  // namespace nibble::trainer
