// For tests of BitLinear: layers of tests/golden/trainer/bit_linear.txt, which an eager PyTorch module made, and their
// values and gradients in the trainer.
#pragma once
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "server/trainer/bit_linear.h"
#include "server/trainer/torch_bridge.h"
#include "tests/support/golden.h"
#include "tests/support/numeric.h"

namespace nibble::trainer {

class BitLinearTest : public ::testing::Test {
 protected:
  BitLinearTest() { context_.scratch = torch::empty({256 * 256}); }  // elements of the largest linear of the tests

  static const support::Golden& Values() {
    static const support::Golden golden("tests/golden/trainer/bit_linear.txt");
    return golden;
  }

  static torch::Tensor Golden(const std::string& name, std::vector<std::int64_t> shape,
                              torch::ScalarType type = torch::kFloat32) {
    const std::vector<std::uint8_t>& bytes = Values().Bytes(name);
    torch::Tensor tensor = torch::empty(shape, type);
    EXPECT_EQ(tensor.nbytes(), bytes.size()) << name;
    std::memcpy(tensor.data_ptr(), bytes.data(), std::min(tensor.nbytes(), bytes.size()));
    return tensor;
  }

  // One layer of the golden file, as the trainer has it.
  struct Case {
    std::string name;
    std::vector<std::int64_t> shape = {5, 40};
    std::int64_t n = 12;
    torch::ScalarType type = torch::kFloat32;
    bool bias = true;
    bool norm = false;
    BitLinearOptions options = {};

    std::int64_t k() const { return shape.back(); }
    std::int64_t rows() const {
      std::int64_t rows = 1;
      for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
      return rows;
    }
  };

  struct Run {
    torch::Tensor x, norm, y, g;
    BitWeight weight;
    CodedInput input;
    torch::Tensor grad_x, grad_weight, grad_bias, grad_norm;
  };

  Run Forward(const Case& c) {
    Run run;
    run.x = Golden(c.name + ".x", c.shape, c.type).requires_grad_();
    run.weight.master = Golden(c.name + ".weight", {c.n, c.k()}).requires_grad_();
    if (c.bias) run.weight.bias = Golden(c.name + ".bias", {c.n}).requires_grad_();
    if (c.norm) run.norm = Golden(c.name + ".norm", {c.k()}).requires_grad_();
    run.weight.Ternarize(context_.stream);
    run.input = c.norm ? NormCodedInput(run.x, run.norm, 1e-5, c.options, context_) : CodedInput{run.x, nullptr};
    run.y = ApplyBitLinear(run.input, run.weight, c.options, context_);
    return run;
  }

  Run Backward(const Case& c) {
    Run run = Forward(c);
    std::vector<std::int64_t> out = c.shape;
    out.back() = c.n;
    run.g = Golden(c.name + ".g", out);
    (run.y * run.g.to(c.type)).sum().backward();
    run.grad_x = run.x.grad();
    run.grad_weight = run.weight.master.grad();
    if (c.bias) run.grad_bias = run.weight.bias.grad();
    if (c.norm) run.grad_norm = run.norm.grad();
    return run;
  }

  // The linear of the case while only `share` is quantized, without a norm before it.
  Run PartlyQuantized(const Case& c, double share) {
    Run run = Forward(c);
    run.g = Golden(c.name + ".g", {c.rows(), c.n});
    run.y = ApplyPartlyBitLinear(run.x, run.weight, c.options, share, context_);
    (run.y * run.g).sum().backward();
    run.grad_x = run.x.grad();
    run.grad_weight = run.weight.master.grad();
    run.grad_bias = run.weight.bias.grad();
    return run;
  }

  // Codes and scale of the weight equal the eager ones bit for bit; all codes are -1, 0 or 1.
  void ExpectTernary(const Case& c, const Run& run) {
    const torch::Tensor codes = torch::empty({c.n, c.k()}, torch::kFloat32);
    kernels::PackedTernaryWeight packed = run.weight.packed();
    packed.scale = nullptr;
    ASSERT_TRUE(kernels::DequantizeTernary({.w = packed, .out = ViewOf(codes)}, context_.stream).ok());
    EXPECT_EQ((codes == -1).logical_or(codes == 0).logical_or(codes == 1).sum().item<std::int64_t>(), c.n * c.k());
    EXPECT_TRUE(torch::equal(codes.to(torch::kInt8), Golden(c.name + ".codes_w", {c.n, c.k()}, torch::kInt8)));
    EXPECT_TRUE(torch::equal(run.weight.scale[0], Golden(c.name + ".scale_w", {1})[0]));
  }

  // The integer rows of an input that no norm has quantized. The linear makes them itself, with this kernel
  // and these options.
  CodedRows Quantized(const Case& c, const torch::Tensor& x) {
    const torch::ScalarType type = c.options.activations.bits == 16 ? torch::kInt16 : torch::kInt8;
    CodedRows rows = {torch::empty({c.rows(), kernels::Int8PaddedK(c.k())}, type), torch::empty({c.rows()}), c.k()};
    const absl::Status status = kernels::QuantizeActivations(
        {.x = ViewOf(x), .out = rows.view(), .how = c.options.activations}, context_.stream);
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }

  // Integer rows and their scales equal the eager ones bit for bit. Each row, or with one scale per tensor the largest
  // row, uses exactly the range of its bits.
  void ExpectRows(const Case& c, const CodedRows& rows) {
    const bool wide = c.options.activations.bits == 16;
    const torch::Tensor want = Golden(c.name + ".codes_x", {c.rows(), c.k()}, wide ? torch::kInt16 : torch::kInt8);
    EXPECT_TRUE(torch::equal(rows.codes.narrow(1, 0, c.k()), want));
    EXPECT_TRUE(torch::equal(rows.scale, Golden(c.name + ".scale_x", {c.rows()})));
    const int top = static_cast<int>(kernels::MaxCode(c.options.activations.bits));
    const torch::Tensor largest = rows.codes.to(torch::kInt32).abs().amax(1);
    EXPECT_EQ(largest.max().item<int>(), top);
    if (!c.options.activations.per_tensor) {
      EXPECT_EQ(largest.min().item<int>(), top);
    }
  }

  // The output equals that of the eager module that multiplies codes, bit for bit. From the output of the eager module
  // that dequantizes before it multiplies, it differs by the roundings of our epilogue.
  void ExpectOutput(const Case& c, const Run& run) {
    std::vector<std::int64_t> out = c.shape;
    out.back() = c.n;
    EXPECT_EQ(run.y.sizes().vec(), out);
    const torch::Tensor want = Golden(c.name + ".y_codes", out, c.type);
    EXPECT_TRUE(torch::equal(run.y.detach(), want))
        << (run.y.detach().to(torch::kFloat32) - want.to(torch::kFloat32)).abs().max();
    const torch::Tensor exact = Golden(c.name + ".y_dequantised", out, torch::kFloat64);
    // Three roundings in f32 of the product and one of the sum with the bias, with room for their interplay: Gamma(5);
    // then one to the output's type. |product| + |bias| is at most 2 * largest.
    const double unit = c.type == torch::kBFloat16 ? support::kEpsBF16 : support::kEpsF32;
    const double largest =
        exact.abs().max().item<double>() + (c.bias ? run.weight.bias.detach().abs().max().item<double>() : 0.0);
    EXPECT_LE((run.y.detach().to(torch::kFloat64) - exact).abs().max().item<double>(),
              2 * (support::Gamma(5) + unit) * largest);
  }

  // `bound` is relative to the largest element. Our f32 sums have another order than torch's.
  static void ExpectNear(const torch::Tensor& got, const torch::Tensor& want, double bound = 5e-6) {
    ASSERT_TRUE(got.defined());
    const double largest = want.to(torch::kFloat64).abs().max().item<double>();
    EXPECT_LE((got.to(torch::kFloat64) - want.to(torch::kFloat64)).abs().max().item<double>(), bound * largest);
  }

  void ExpectGradients(const Case& c) {
    const Run run = Backward(c);
    ExpectNear(run.grad_x, Golden(c.name + ".grad_x", c.shape, c.type), c.type == torch::kBFloat16 ? 0x1p-8 : 5e-6);
    ExpectNear(run.grad_weight, Golden(c.name + ".grad_weight", {c.n, c.k()}));
    if (c.bias) ExpectNear(run.grad_bias, Golden(c.name + ".grad_bias", {c.n}));
    if (c.norm) ExpectNear(run.grad_norm, Golden(c.name + ".grad_norm", {c.k()}));
  }

  void ExpectAll(const Case& c) {
    const Run run = Forward(c);
    ExpectTernary(c, run);
    ExpectOutput(c, run);
    ExpectRows(c, run.input.rows != nullptr ? *run.input.rows : Quantized(c, run.x));
    ExpectGradients(c);
  }

  static BitLinearOptions With(kernels::Ste ste, bool scale_grad) {
    BitLinearOptions options;
    options.ste = ste;
    options.scale_grad = scale_grad;
    return options;
  }

  TrainingContext context_;
};

}  // namespace nibble::trainer
