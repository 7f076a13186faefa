// Compares linears whose products run in int8 with float products of torch.
#include "server/trainer/int8_linear.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <vector>

#include "kernels/ops/matmul/matmul_int8.h"
#include "server/trainer/torch_runtime.h"
#include "tests/support/isas.h"
#include "tests/support/random.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

Tensor Random(std::uint64_t seed, std::int64_t rows, std::int64_t cols) {
  const std::vector<float> values = support::NormalVector(seed, rows * cols);
  return torch::tensor(values).view({rows, cols});
}

// Signal to noise in decibels.
double Snr(const Tensor& got, const Tensor& want) {
  const Tensor exact = want.to(torch::kFloat64);
  const double noise = (got.to(torch::kFloat64) - exact).square().sum().item<double>();
  return 10 * std::log10(exact.square().sum().item<double>() / noise);
}

class Int8LinearTest : public ::testing::Test {
 protected:
  Int8LinearTest() {
    context_.stream.isa = kernels::DetectIsa();
    context_.stream.library = library_.get();
    context_.scratch = torch::empty({0}, torch::kFloat32);
  }

  struct Result {
    Tensor y, grad_x, grad_weight;
  };
  // The master has the type of weight_.
  Result Run(const Int8LinearOptions& options, bool as_rows = false, std::uint64_t draw = 0) {
    Int8Weight weight;
    weight.master = weight_.clone().requires_grad_(true);
    weight.number = 3;
    weight.Quantize(options, context_.scratch.scalar_type() == torch::kBFloat16, context_.stream);
    if (options.stochastic_forward) weight.QuantizeForward(options, draw, context_.stream);
    const Tensor x = x_.clone().requires_grad_(true);
    CodedInput input = {x, nullptr};
    if (as_rows) input.rows = std::make_shared<CodedRows>(QuantizeRows(x.detach(), options.rows, context_));
    const Tensor y = ApplyInt8Linear(input, weight, options, draw, context_);
    y.backward(grad_y_);
    return {y.detach().clone(), x.grad(), weight.master.grad()};
  }
  void Shape(std::int64_t t, std::int64_t k, std::int64_t n) {
    x_ = Random(1, t, k);
    weight_ = Random(2, n, k);
    grad_y_ = Random(3, t, n);
  }

  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  TrainingContext context_;
  Tensor x_, weight_, grad_y_;
};

TEST_F(Int8LinearTest, EachProductIsTwentyDecibelsAboveItsNoise) {
  for (const auto& [t, k, n] : {std::tuple{96, 160, 112}, std::tuple{7, 13, 5}, std::tuple{1, 64, 33}}) {
    Shape(t, k, n);
    for (const bool as_rows : {false, true}) {
      for (const bool per_tensor : {false, true}) {
        for (const bool stochastic : {false, true}) {
          if (as_rows && stochastic) continue;  // rows that linears share are rounded to nearest
          Int8LinearOptions options;
          options.weight_per_tensor = options.grad_per_tensor = options.rows.activations.per_tensor = per_tensor;
          if (per_tensor) options.rows.max_outliers = 0;
          options.stochastic_forward = options.stochastic_gradients = stochastic;
          const Result got = Run(options, as_rows);
          SCOPED_TRACE(testing::Message() << t << " x " << k << " x " << n << (as_rows ? " rows" : "")
                                          << (per_tensor ? " per tensor" : "") << (stochastic ? " stochastic" : ""));
          EXPECT_GT(Snr(got.y, x_.mm(weight_.t())), 20);
          EXPECT_GT(Snr(got.grad_x, grad_y_.mm(weight_)), 20);
          EXPECT_GT(Snr(got.grad_weight, grad_y_.t().mm(x_)), 20);
        }
      }
    }
  }
}

TEST_F(Int8LinearTest, SwitchesSelectTheProductsThatStayFloat) {
  Shape(40, 70, 30);
  const auto nearly = [](const Tensor& got, const Tensor& want) { return Snr(got, want) > 100; };
  for (int mask = 0; mask < 8; ++mask) {
    Int8LinearOptions options;
    options.forward = (mask & 1) != 0;
    options.grad_input = (mask & 2) != 0;
    options.grad_weight = (mask & 4) != 0;
    const Result got = Run(options);
    EXPECT_EQ(nearly(got.y, x_.mm(weight_.t())), !options.forward) << mask;
    EXPECT_EQ(nearly(got.grad_x, grad_y_.mm(weight_)), !options.grad_input) << mask;
    EXPECT_EQ(nearly(got.grad_weight, grad_y_.t().mm(x_)), !options.grad_weight) << mask;
  }
}

// Tests both types of backward products. Products in f32, as on a CPU without AVX-512, read the master widened to f32.
TEST_F(Int8LinearTest, MasterInBf16GivesTheProductsOfAnEqualOneInF32) {
  for (const torch::ScalarType type : {torch::kFloat32, torch::kBFloat16}) {
    context_.scratch = torch::empty({0}, type);
    for (int mask = 1; mask < 8; mask += 2) {
      Shape(40, 70, 30);
      Int8LinearOptions options;
      options.grad_input = (mask & 2) != 0;
      options.grad_weight = (mask & 4) != 0;
      weight_ = weight_.to(torch::kBFloat16);
      const Result got = Run(options);
      weight_ = weight_.to(torch::kFloat32);
      const Result want = Run(options);
      EXPECT_TRUE(torch::equal(got.y, want.y)) << mask;
      EXPECT_TRUE(torch::equal(got.grad_x, want.grad_x)) << mask;
      EXPECT_EQ(got.grad_weight.scalar_type(), torch::kBFloat16);
      EXPECT_TRUE(torch::equal(got.grad_weight, want.grad_weight.to(torch::kBFloat16))) << mask;
    }
  }
}

// The straight-through gradient of the weight multiplies what the forward product read.
TEST_F(Int8LinearTest, WeightGradientReadsTheRowsOfTheForwardProduct) {
  Shape(40, 70, 30);
  x_[3][5] = 50.0f;  // an outlier, which keeps its value
  Int8LinearOptions options;
  options.grad_weight = false;
  const Tensor read = QuantizeRows(x_, options.rows, context_).Values(context_.stream);
  EXPECT_EQ(read[3][5].item<float>(), 50.0f);
  const Tensor got = Run(options, /*as_rows=*/true).grad_weight;
  EXPECT_GT(Snr(got, grad_y_.t().mm(read)), 100);
  EXPECT_LT(Snr(got, grad_y_.t().mm(x_)), 100);
}

TEST_F(Int8LinearTest, AddsTheBiasAsServingDoes) {
  Shape(9, 70, 30);
  const Int8LinearOptions options;
  Int8Weight weight;
  weight.master = weight_.clone().requires_grad_(true);
  weight.bias = Random(4, 1, 30).view({30}).requires_grad_(true);
  weight.Quantize(options, false, context_.stream);
  const CodedRows rows = QuantizeRows(x_, options.rows, context_);
  const Tensor got = ApplyInt8Linear({x_, std::make_shared<CodedRows>(rows)}, weight, options, 0, context_).detach();
  std::vector<float> want(9 * 30);
  ASSERT_TRUE(kernels::MatmulInt8({.x = rows.view(),
                                   .w = weight.packed.view(),
                                   .bias = weight.bias.data_ptr<float>(),
                                   .y = kernels::MakeMatrix(want.data(), kernels::DType::kF32, 9, 30)},
                                  context_.stream)
                  .ok());
  EXPECT_EQ(std::vector<float>(got.data_ptr<float>(), got.data_ptr<float>() + got.numel()), want);
}

// Both operands are rounded stochastically, so the mean tends to the product of the exact values.
TEST_F(Int8LinearTest, StochasticForwardProductIsRightOnAverage) {
  Shape(24, 48, 40);
  constexpr int kDraws = 400;
  Int8LinearOptions options;
  options.stochastic_forward = true;
  const auto at_draw = [&](std::uint64_t draw) { return Run(options, /*as_rows=*/false, draw); };
  const auto mean_snr = [&] {
    Tensor sum = torch::zeros({24, 40});
    for (int draw = 0; draw < kDraws; ++draw) sum += at_draw(static_cast<std::uint64_t>(draw)).y;
    return Snr(sum / kDraws, x_.mm(weight_.t()));
  };
  EXPECT_FALSE(torch::equal(at_draw(5).y, at_draw(6).y));
  // The noise of a mean of 400 is 26 dB lower than that of one draw.
  EXPECT_NEAR(mean_snr() - Snr(Run(options).y, x_.mm(weight_.t())), 26, 3);
  options.stochastic_forward = false;
  EXPECT_LT(mean_snr(), 50) << "the nearest codes have the same error in every draw";
}

TEST_F(Int8LinearTest, StochasticGradientsAreRightOnAverage) {
  Shape(24, 48, 40);
  Int8LinearOptions options;
  options.seed = 7;
  const auto at_draw = [&](std::uint64_t draw) { return Run(options, /*as_rows=*/false, draw).grad_weight; };
  const Tensor nearest = Run(options).grad_weight;
  options.stochastic_gradients = true;
  EXPECT_TRUE(torch::equal(at_draw(5), at_draw(5)));
  EXPECT_FALSE(torch::equal(at_draw(5), at_draw(6)));
  // The mean tends to the product of the exact gradient and the rounded x: its noise falls with the number of draws.
  constexpr int kDraws = 400;
  Tensor sum = torch::zeros_like(nearest);
  for (int draw = 0; draw < kDraws; ++draw) sum += at_draw(static_cast<std::uint64_t>(draw));
  options.stochastic_gradients = false;
  const double one = Snr(Run(options).grad_weight, grad_y_.t().mm(x_));
  // The rounding of x stays: about half of the noise of a product whose operands are both rounded.
  EXPECT_GT(Snr(sum / kDraws, grad_y_.t().mm(x_)), one + 2);
  options.stochastic_gradients = true;
  options.seed = 8;
  EXPECT_FALSE(torch::equal(at_draw(5), nearest));
}

}  // namespace
}  // namespace nibble::trainer
