// Compares BitLinear with an eager PyTorch module: tests/golden/trainer/make_bit_linear_golden.py.
#include "server/trainer/bit_linear.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "kernels/ops/quantize/dequantize_ternary.h"
#include "kernels/ops/quantize/quantize_int8.h"
#include "server/base/files.h"
#include "server/model/artifact.h"
#include "server/model/import.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"
#include "server/trainer/bitnet_model.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/weights_recipe.h"
#include "tests/support/golden.h"
#include "tests/support/numeric.h"
#include "tests/support/temp_directory.h"
#include "tests/support/torch_memory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

const support::Golden& Values() {
  static const support::Golden golden("tests/golden/trainer/bit_linear.txt");
  return golden;
}

Tensor Golden(const std::string& name, std::vector<std::int64_t> shape, torch::ScalarType type = torch::kFloat32) {
  const std::vector<std::uint8_t>& bytes = Values().Bytes(name);
  Tensor tensor = torch::empty(shape, type);
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

class BitLinearTest : public ::testing::Test {
 protected:
  BitLinearTest() { context_.scratch = torch::empty({1 << 16}); }

  struct Run {
    Tensor x, norm, y, g;
    BitWeight weight;
    CodedInput input;
    Tensor grad_x, grad_weight, grad_bias, grad_norm;
  };

  Run Forward(const Case& c) {
    Run run;
    run.x = Golden(c.name + ".x", c.shape, c.type).requires_grad_();
    run.weight.master = Golden(c.name + ".weight", {c.n, c.k()}).requires_grad_();
    if (c.bias) run.weight.bias = Golden(c.name + ".bias", {c.n}).requires_grad_();
    if (c.norm) run.norm = Golden(c.name + ".norm", {c.k()}).requires_grad_();
    run.weight.Ternarise(context_.stream);
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
    const Tensor codes = torch::empty({c.n, c.k()}, torch::kFloat32);
    kernels::PackedTernaryWeight packed = run.weight.packed();
    packed.scale = nullptr;
    ASSERT_TRUE(kernels::DequantizeTernary({.w = packed, .out = ViewOf(codes)}, context_.stream).ok());
    EXPECT_EQ((codes == -1).logical_or(codes == 0).logical_or(codes == 1).sum().item<std::int64_t>(), c.n * c.k());
    EXPECT_TRUE(torch::equal(codes.to(torch::kInt8), Golden(c.name + ".codes_w", {c.n, c.k()}, torch::kInt8)));
    EXPECT_TRUE(torch::equal(run.weight.scale[0], Golden(c.name + ".scale_w", {1})[0]));
  }

  // The rows that a linear makes of an input that no norm has quantized, with the same kernel and options.
  CodedRows Quantized(const Case& c, const Tensor& x) {
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
    const Tensor want = Golden(c.name + ".codes_x", {c.rows(), c.k()}, wide ? torch::kInt16 : torch::kInt8);
    EXPECT_TRUE(torch::equal(rows.codes.narrow(1, 0, c.k()), want));
    EXPECT_TRUE(torch::equal(rows.scale, Golden(c.name + ".scale_x", {c.rows()})));
    const int top = static_cast<int>(kernels::MaxCode(c.options.activations.bits));
    const Tensor largest = rows.codes.to(torch::kInt32).abs().amax(1);
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
    const Tensor want = Golden(c.name + ".y_codes", out, c.type);
    EXPECT_TRUE(torch::equal(run.y.detach(), want))
        << (run.y.detach().to(torch::kFloat32) - want.to(torch::kFloat32)).abs().max();
    const Tensor exact = Golden(c.name + ".y_dequantised", out, torch::kFloat64);
    // Three roundings in f32 of the product, one of the sum with the bias, one to the output's type.
    const double unit = c.type == torch::kBFloat16 ? support::kEpsBF16 : support::kEpsF32;
    const double largest =
        exact.abs().max().item<double>() + (c.bias ? run.weight.bias.detach().abs().max().item<double>() : 0.0);
    EXPECT_LE((run.y.detach().to(torch::kFloat64) - exact).abs().max().item<double>(),
              2 * (support::Gamma(5) + unit) * largest);
  }

  // `bound` is relative to the largest element. Our f32 sums have another order than torch's.
  static void ExpectNear(const Tensor& got, const Tensor& want, double bound = 5e-6) {
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

TEST_F(BitLinearTest, MatchesEagerAfterRmsNorm) { ExpectAll({.name = "norm", .norm = true}); }

TEST_F(BitLinearTest, WeightCodesAreAllTernary) {
  for (const char* name : {"bias_f32", "plain_f32", "norm"}) {
    const Case c = {.name = name, .bias = std::string(name) != "plain_f32", .norm = std::string(name) == "norm"};
    ExpectTernary(c, Forward(c));
  }
}

TEST_F(BitLinearTest, ActivationCodesLieWithin127) {
  const Case c = {.name = "norm", .norm = true};
  const Run run = Forward(c);
  ExpectRows(c, *run.input.rows);
  const Tensor codes = run.input.rows->codes.to(torch::kInt32);
  EXPECT_EQ(codes.abs().amax(1).min().item<int>(), 127);  // each row uses its range
  EXPECT_GE(codes.min().item<int>(), -127);
  EXPECT_LE(codes.max().item<int>(), 127);
}

TEST_F(BitLinearTest, MatchesEagerWithBiasInF32) { ExpectAll({.name = "bias_f32"}); }
TEST_F(BitLinearTest, MatchesEagerWithoutBiasInF32) { ExpectAll({.name = "plain_f32", .bias = false}); }
TEST_F(BitLinearTest, MatchesEagerWithBiasInBf16) { ExpectAll({.name = "bias_bf16", .type = torch::kBFloat16}); }
TEST_F(BitLinearTest, MatchesEagerWithoutBiasInBf16) {
  ExpectAll({.name = "plain_bf16", .type = torch::kBFloat16, .bias = false});
}
TEST_F(BitLinearTest, MatchesEagerForShape7x13) { ExpectAll({.name = "shape_7x13", .shape = {5, 13}, .n = 7}); }
TEST_F(BitLinearTest, MatchesEagerForThreeDimensionalInput) {
  ExpectAll({.name = "three_dimensions", .shape = {2, 3, 64}, .n = 16});
}
TEST_F(BitLinearTest, MatchesEagerForOneRow) { ExpectAll({.name = "one_row", .shape = {1, 48}, .n = 8}); }

TEST_F(BitLinearTest, MatchesEagerWith4BitActivations) {
  Case c = {.name = "bits_4"};
  c.options.activations.bits = 4;
  ExpectAll(c);
}

TEST_F(BitLinearTest, MatchesEagerWith16BitActivations) {
  Case c = {.name = "bits_16"};
  c.options.activations.bits = 16;
  ExpectAll(c);
}

TEST_F(BitLinearTest, ActivationsPerTensorShareOneScale) {
  Case c = {.name = "per_tensor"};
  c.options.activations.per_tensor = true;
  ExpectAll(c);
}

// dW is g^T x_q, also where a weight was rounded or saturated.
TEST_F(BitLinearTest, IdentityEstimatorIgnoresTheRoundingOfWeights) {
  const Case c = {.name = "bias_f32"};
  const Run run = Backward(c);
  const Tensor x_q = Golden(c.name + ".codes_x", c.shape, torch::kInt8).to(torch::kFloat64) *
                     Golden(c.name + ".scale_x", {5}).to(torch::kFloat64).unsqueeze(1);
  ExpectNear(run.grad_weight, run.g.to(torch::kFloat64).t().mm(x_q));
}

// dx is g W_q, also where an activation was rounded.
TEST_F(BitLinearTest, IdentityEstimatorIgnoresTheRoundingOfActivations) {
  const Case c = {.name = "bias_f32"};
  const Run run = Backward(c);
  const Tensor w_q = Golden(c.name + ".codes_w", {12, 40}, torch::kInt8).to(torch::kFloat64) *
                     Golden(c.name + ".scale_w", {1}).to(torch::kFloat64);
  ExpectNear(run.grad_x, run.g.to(torch::kFloat64).mm(w_q));
}

TEST_F(BitLinearTest, NoGradientWhereSaturated) {
  const Case c = {.name = "round_only_detached", .norm = true, .options = With(kernels::Ste::kRoundOnly, false)};
  const Run run = Backward(c);
  const Tensor saturated = (run.weight.master.detach() / run.weight.scale[0]).round().abs() > 1;
  EXPECT_GT(saturated.sum().item<int>(), 0);
  EXPECT_EQ(run.grad_weight.masked_select(saturated).abs().max().item<float>(), 0.0f);
  EXPECT_GT(run.grad_weight.masked_select(saturated.logical_not()).abs().min().item<float>(), 0.0f);
}

TEST_F(BitLinearTest, RoundOnlyAndClippedMatchEager) {
  for (const bool scale_grad : {false, true}) {
    const std::string scale = scale_grad ? "scaled" : "detached";
    ExpectAll({.name = "round_only_" + scale, .norm = true, .options = With(kernels::Ste::kRoundOnly, scale_grad)});
    ExpectAll({.name = "clipped_" + scale, .norm = true, .options = With(kernels::Ste::kClipped, scale_grad)});
  }
  ExpectAll({.name = "rows_scaled", .options = With(kernels::Ste::kRoundOnly, true)});
}

// Either the linear quantizes its own input, or the norm before the linear has quantized it.
TEST_F(BitLinearTest, ScaleGradientOf16BitActivationsMatchesEager) {
  for (const bool norm : {false, true}) {
    Case c = {.name = norm ? "bits_16_norm_scaled" : "bits_16_rows_scaled", .norm = norm};
    c.options = With(kernels::Ste::kRoundOnly, true);
    c.options.activations.bits = 16;
    ExpectAll(c);
  }
}

TEST_F(BitLinearTest, GradientsOfIdentityAndRoundOnlyPointTheSameWay) {
  const auto weight_gradient = [&](const char* name, kernels::Ste ste, bool scale_grad) {
    const Tensor g =
        Backward({.name = name, .shape = {16, 64}, .n = 32, .bias = false, .options = With(ste, scale_grad)})
            .grad_weight;
    return std::vector<float>(g.data_ptr<float>(), g.data_ptr<float>() + g.numel());
  };
  const std::vector<float> identity = weight_gradient("cosine_identity", kernels::Ste::kIdentity, false);
  for (const double cosine :
       {support::Cosine(identity, weight_gradient("cosine_round_only", kernels::Ste::kRoundOnly, true)),
        support::Cosine(identity, weight_gradient("cosine_round_only_detached", kernels::Ste::kRoundOnly, false))}) {
    EXPECT_GT(cosine, 0.80);
    EXPECT_LT(cosine, 1.0 - 1e-3);  // the estimators differ
  }
}

// The values and gradients of the eager formula x + share * (quantized(x) - x).detach(), for rows and weight.
TEST_F(BitLinearTest, PartlyQuantizedLinearMatchesAutogradOfItsFormula) {
  const Case c = {.name = "bias_f32"};
  for (const double share : {0.0, 0.3, 0.875}) {
    SCOPED_TRACE(share);
    const Run run = PartlyQuantized(c, share);
    const Tensor x = run.x.detach().clone().requires_grad_(), w = run.weight.master.detach().clone().requires_grad_();
    const Tensor bias = run.weight.bias.detach().clone().requires_grad_();
    const Tensor ternary = torch::empty_like(w.detach());
    ASSERT_TRUE(kernels::DequantizeTernary({.w = run.weight.packed(), .out = ViewOf(ternary)}, context_.stream).ok());
    const auto mixed = [share](const Tensor& from, const Tensor& quantized) {
      return from + share * (quantized - from).detach();
    };
    const Tensor y = torch::linear(mixed(x, Quantized(c, x.detach()).Values(context_.stream)), mixed(w, ternary), bias);
    (y * run.g).sum().backward();
    ExpectNear(run.y.detach(), y.detach());
    ExpectNear(run.grad_x, x.grad());
    ExpectNear(run.grad_weight, w.grad());
    ExpectNear(run.grad_bias, bias.grad());
  }
}

// With share 1, both linears agree up to the roundings of float products, for each estimator.
TEST_F(BitLinearTest, FullyQuantizedFloatLinearAgreesWithTheLinearOfCodes) {
  for (const kernels::Ste ste : {kernels::Ste::kIdentity, kernels::Ste::kRoundOnly, kernels::Ste::kClipped}) {
    for (const bool scale_grad : {false, true}) {
      const Case c = {.name = "bias_f32", .options = With(ste, scale_grad)};
      const Run codes = Backward(c), floats = PartlyQuantized(c, 1.0);
      ExpectNear(floats.y.detach(), codes.y.detach());
      ExpectNear(floats.grad_x, codes.grad_x);
      ExpectNear(floats.grad_weight, codes.grad_weight);
      ExpectNear(floats.grad_bias, codes.grad_bias);
    }
  }
}

// An estimator acts on the quantized share of a gradient only.
TEST_F(BitLinearTest, SaturatedWeightsKeepTheFloatShareOfTheirGradient) {
  const Case identity = {.name = "bias_f32"};
  const Case round_only = {.name = "bias_f32", .options = With(kernels::Ste::kRoundOnly, false)};
  const Run whole = PartlyQuantized(identity, 0.75), run = PartlyQuantized(round_only, 0.75);
  const Tensor saturated = (run.weight.master.detach() / run.weight.scale[0]).round().abs() > 1;
  EXPECT_GT(saturated.sum().item<int>(), 0);
  ExpectNear(run.grad_weight, torch::where(saturated, 0.25 * whole.grad_weight, whole.grad_weight));
}

TEST_F(BitLinearTest, GradientToWeightMatchesEager) {
  ExpectNear(Backward({.name = "norm", .norm = true}).grad_weight, Golden("norm.grad_weight", {12, 40}));
}
TEST_F(BitLinearTest, GradientToBiasMatchesEager) {
  ExpectNear(Backward({.name = "norm", .norm = true}).grad_bias, Golden("norm.grad_bias", {12}));
}
TEST_F(BitLinearTest, GradientToNormWeightMatchesEager) {
  ExpectNear(Backward({.name = "norm", .norm = true}).grad_norm, Golden("norm.grad_norm", {40}));
}

// Import and the trainer's model read the file of the eager modules and compute those modules' bits. The trainer writes
// the same names, shapes and bytes back, which load_state_dict requires.
TEST_F(BitLinearTest, StateDictLoadsBothWays) {
  const testing::TempDirectory directory;
  const std::string eager = directory / "eager", imported = directory / "imported", masters = directory / "masters";
  std::filesystem::copy(NIBBLE_SOURCE_DIR "/tests/golden/trainer/bit_linear_state", eager);
  std::filesystem::copy(NIBBLE_SOURCE_DIR "/tests/golden/model/families/tokenizer.json", eager + "/tokenizer.json");
  const auto report = model::ImportModel(base::RealFileSystem(), eager, imported, kernels::DType::kF32);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto artifact = model::Artifact::Open(imported);
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  const model::ModelConfig& config = (*artifact)->config();
  BitNetOptions how;
  how.max_positions = 64;
  const auto trained = MakeBitNetModel(**artifact, config, how, context_.stream);
  ASSERT_TRUE(trained.ok()) << trained.status();
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter& parameter : (*trained)->parameters()) parameters[parameter.name] = &parameter;
  const auto value = [&](const std::string& name) {
    const Parameter& parameter = *parameters.at(name);
    return torch::from_blob(parameter.value.data, parameter.shape, torch::kFloat32);
  };

  const BitLinearOptions options;
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    const auto kind = static_cast<model::LinearKind>(k);
    const std::string path = model::ModulePath(0, kind), golden = std::string("state.") + model::ModuleSuffix(kind);
    BitWeight weight;
    weight.master = value(path + ".weight");
    weight.bias = value(path + ".bias");
    weight.Ternarise(context_.stream);
    const Tensor x = Golden(golden + ".x", {4, model::InFeatures(config, kind)});
    const Tensor norm = value(model::NormName(0, model::NormBefore(kind)));
    const CodedInput input = NormCodedInput(x, norm, config.linear_norm_eps, options, context_);
    const Tensor y = ApplyBitLinear(input, weight, options, context_);
    EXPECT_TRUE(torch::equal(y, Golden(golden + ".y_codes", {4, model::OutFeatures(config, kind)}))) << path;
    // The model itself multiplies by these codes and this scale.
    const kernels::PackedTernaryWeight& own = (*trained)->ServingWeights().layers[0].linear(kind).ternary;
    EXPECT_TRUE(support::BytesEqual(own.tiles, weight.tiles.data_ptr(), weight.tiles.nbytes())) << path;
    EXPECT_EQ(own.scale[0], weight.scale[0].item<float>()) << path;
  }

  const auto written = convert::MakeTrainedModel(
      base::RealFileSystem(), config, {.bitnet = model::BitNetInfo(), .kv_dtype = kernels::DType::kBF16},
      TrainedTensors((*trained)->Values()), imported, base::Json::object(), masters);
  ASSERT_TRUE(written.ok()) << written.status();
  const auto theirs = model::OpenSafetensorsModel(base::RealFileSystem(), eager);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  const auto ours = model::OpenSafetensorsModel(base::RealFileSystem(), masters);
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_EQ(ours->tensors.size(), theirs->tensors.size());
  for (const auto& [name, want] : theirs->tensors) {
    ASSERT_TRUE(ours->tensors.contains(name)) << name;
    const model::SafetensorsTensor& got = ours->tensors.at(name);
    EXPECT_EQ(got.dtype_name, want.dtype_name) << name;
    ASSERT_EQ(got.shape, want.shape) << name;
    ASSERT_EQ(got.bytes.size(), want.bytes.size()) << name;
    EXPECT_TRUE(support::BytesEqual(got.bytes.data(), want.bytes.data(), want.bytes.size())) << name;
  }
}

// transformers' own AutoBitLinear with online quantization (make_hf_bit_linear_golden.py): it multiplies dequantized
// values, so outputs differ by the order of f32 sums. In each row, native scales change at least one code.
TEST_F(BitLinearTest, ReciprocalScalesMatchTransformers) {
  const support::Golden golden("tests/golden/trainer/hf_bit_linear.txt");
  const auto load = [&](const char* name, std::vector<std::int64_t> shape) {
    const std::vector<float> values = golden.Get<float>(name);
    return torch::tensor(values).view(shape);
  };
  BitWeight weight;
  weight.master = load("weight", {12, 40}).requires_grad_();
  weight.bias = load("bias", {12}).requires_grad_();
  weight.Ternarise(context_.stream, kernels::RowScaling::kReciprocal);
  const Tensor x = load("x", {6, 40}).requires_grad_(), g = load("g", {6, 12});
  BitLinearOptions options;
  const Tensor native = ApplyBitLinear({x, nullptr}, weight, options, context_);
  options.activations.scaling = kernels::RowScaling::kReciprocal;
  const Tensor y = ApplyBitLinear({x, nullptr}, weight, options, context_), want = load("y", {6, 12});
  (y * g).sum().backward();
  ExpectNear(y.detach(), want);
  EXPECT_GT((native.detach() - want).abs().amax(1).min().item<float>(), 1e-4) << "native scales give another code";
  ExpectNear(x.grad(), load("grad_x", {6, 40}));
  ExpectNear(weight.master.grad(), load("grad_weight", {12, 40}));
  ExpectNear(weight.bias.grad(), load("grad_bias", {12}));
}

// The estimators' masks and scale gradients do not depend on how the scale is rounded.
TEST_F(BitLinearTest, ReciprocalScaleOfTheWeightKeepsItsCodesAndGradients) {
  for (const char* name : {"round_only_scaled", "clipped_scaled"}) {
    const kernels::Ste ste = name[0] == 'r' ? kernels::Ste::kRoundOnly : kernels::Ste::kClipped;
    const Case c = {.name = name, .norm = true, .options = With(ste, true)};
    Run run = Forward(c);
    const Tensor tiles = run.weight.tiles.clone();
    run.weight.Ternarise(context_.stream, kernels::RowScaling::kReciprocal);
    EXPECT_TRUE(torch::equal(run.weight.tiles, tiles));
    EXPECT_EQ(run.weight.scale[0].item<float>(),
              kernels::ReciprocalScale(Golden(c.name + ".scale_w", {1})[0].item<float>()));
    const Tensor y = ApplyBitLinear(run.input, run.weight, c.options, context_);
    (y * Golden(c.name + ".g", {5, 12})).sum().backward();
    ExpectNear(run.weight.master.grad(), Golden(c.name + ".grad_weight", {12, 40}));
  }
}

// Counts the nodes of the graph of `outputs`, by kind.
std::map<std::string, int> CountNodes(const std::vector<Tensor>& outputs) {
  std::map<std::string, int> count;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  for (const Tensor& y : outputs) open.push_back(y.grad_fn().get());
  while (!open.empty()) {
    torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    const std::string name = node->name();
    ++count[name.find("BitLinearFunction") != std::string::npos  ? "linear"
            : name.find("NormRowsFunction") != std::string::npos ? "norm"
            : name.find("AccumulateGrad") != std::string::npos   ? "leaf"
                                                                 : name];
    for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
  }
  return count;
}

TEST_F(BitLinearTest, LinearThatQuantizesItsInputIsOneNode) {
  BitWeight weight;
  weight.master = torch::randn({32, 64}).requires_grad_();
  weight.bias = torch::randn({32}).requires_grad_();
  weight.Ternarise(context_.stream);
  const Tensor x = torch::randn({6, 64}).requires_grad_();
  for (const BitLinearOptions& options : {With(kernels::Ste::kIdentity, false), With(kernels::Ste::kRoundOnly, true)}) {
    EXPECT_EQ(CountNodes({ApplyBitLinear({x, nullptr}, weight, options, context_)}),
              (std::map<std::string, int>{{"leaf", 3}, {"linear", 1}}));
  }
}

TEST_F(BitLinearTest, NormedLinearsWithOneInputAreOneNodeEach) {
  const Tensor x = torch::randn({6, 64}).requires_grad_(), norm = torch::ones({64}).requires_grad_();
  std::vector<BitWeight> weights(3);
  const BitLinearOptions options;
  const CodedInput input = NormCodedInput(x, norm, 1e-5, options, context_);
  std::vector<Tensor> out;
  for (BitWeight& weight : weights) {
    weight.master = torch::randn({32, 64}).requires_grad_();
    weight.Ternarise(context_.stream);
    out.push_back(ApplyBitLinear(input, weight, options, context_));
  }
  EXPECT_EQ(CountNodes(out), (std::map<std::string, int>{{"leaf", 5}, {"linear", 3}, {"norm", 1}}));
}

// Inputs are copies here, so that keeping one counts: in the decoder, no other node keeps the input of a linear or of
// its norm (an attention keeps q, k and v, a gated product its two factors, a sum nothing).
TEST_F(BitLinearTest, GraphKeepsTheExpectedNumberOfBytes) {
  constexpr std::int64_t kTokens = 7, kIn = 128, kOut = 32;
  constexpr std::int64_t kCodes = kTokens * kIn, kScales = kTokens * 4;  // one byte per activation, one f32 per row
  constexpr std::int64_t kInput = kTokens * kIn * 4;                     // the input itself, f32
  BitWeight weight;
  weight.master = torch::randn({kOut, kIn}).requires_grad_();
  weight.bias = torch::randn({kOut}).requires_grad_();
  weight.Ternarise(context_.stream);
  const Tensor x = torch::randn({kTokens, kIn}).requires_grad_(), norm = torch::ones({kIn}).requires_grad_();
  const BitLinearOptions identity = With(kernels::Ste::kIdentity, false);
  const BitLinearOptions round_only = With(kernels::Ste::kRoundOnly, false);
  const BitLinearOptions scaled = With(kernels::Ste::kRoundOnly, true);
  BitLinearOptions wide = identity;
  wide.activations.bits = 16;

  // A linear alone: integer rows and their scales; the packed weight by reference.
  const auto alone = [&](const BitLinearOptions& options) {
    return support::KeptBytes([&] { return ApplyBitLinear({x.clone(), nullptr}, weight, options, context_); });
  };
  EXPECT_EQ(alone(identity), kCodes + kScales);
  EXPECT_EQ(alone(round_only), kCodes + kScales) << "the master exists anyway";
  EXPECT_EQ(alone(scaled), kCodes + kScales + kInput) << "the gradient of the scale needs the input itself";
  EXPECT_EQ(alone(wide), 2 * kCodes + kScales);

  // After a norm, three linears share their rows. The norm keeps 1/rms of each row and its input: its gradient needs x,
  // and the codes are too coarse.
  const auto normed = [&](const BitLinearOptions& options) {
    return support::KeptBytes([&] {
      const CodedInput input = NormCodedInput(x.clone(), norm, 1e-5, options, context_);
      std::vector<Tensor> out;
      for (int i = 0; i < 3; ++i) out.push_back(ApplyBitLinear(input, weight, options, context_));
      return out;
    });
  };
  EXPECT_EQ(normed(identity), kCodes + 2 * kScales + kInput);
  EXPECT_EQ(normed(round_only), kCodes + 2 * kScales + kInput);
  EXPECT_EQ(normed(scaled), kCodes + 2 * kScales + kInput) << "the norm has the linears' rows and its own input";
  EXPECT_EQ(normed(wide), 2 * kCodes + 2 * kScales + kInput);
}

TEST_F(BitLinearTest, PackedWeightIsKeptByReference) {
  BitWeight weight;
  weight.master = torch::randn({32, 64}).requires_grad_();
  weight.Ternarise(context_.stream);
  const auto tiles = weight.tiles.use_count(), scale = weight.scale.use_count();
  const BitLinearOptions options;
  const Tensor x = torch::randn({6, 64}).requires_grad_();
  {
    const Tensor y = ApplyBitLinear({x, nullptr}, weight, options, context_);
    EXPECT_EQ(weight.tiles.use_count(), tiles + 1);
    EXPECT_EQ(weight.scale.use_count(), scale + 1);
  }
  EXPECT_EQ(weight.tiles.use_count(), tiles);
  EXPECT_EQ(weight.scale.use_count(), scale);
}

// With gradients, a linear without a norm keeps integer rows and their scales, one byte per activation; its packed
// weight exists anyway.
TEST_F(BitLinearTest, GraphKeepsOnlyIntegerRows) {
  constexpr std::int64_t kSize = 256, kTokens = 64, kLayers = 32;
  BitWeight weight;
  weight.master = torch::randn({kSize, kSize}).requires_grad_();
  weight.Ternarise(context_.stream);
  const BitLinearOptions options;
  const auto peak = [&](bool gradients) {
    support::TorchMemory memory;
    const torch::AutoGradMode mode(gradients);
    Tensor y = torch::ones({kTokens, kSize});
    for (std::int64_t i = 0; i < kLayers; ++i) y = ApplyBitLinear({y, nullptr}, weight, options, context_);
    return memory.peak_bytes();
  };
  const std::int64_t extra = peak(true) - peak(false);
  const std::int64_t rows = kTokens * (kSize + 4);  // i8 codes and an f32 scale
  EXPECT_GE(extra, (kLayers - 2) * rows);
  EXPECT_LE(extra, kLayers * rows + 4096);
}

TEST_F(BitLinearTest, TernariseIsRepeatableAndFollowsTheMaster) {
  BitWeight weight;
  weight.master = torch::randn({16, 32}).requires_grad_();
  weight.Ternarise(context_.stream);
  const Tensor tiles = weight.tiles.clone(), scale = weight.scale.clone();
  weight.Ternarise(context_.stream);
  EXPECT_TRUE(torch::equal(tiles, weight.tiles) && torch::equal(scale, weight.scale));
  {
    const torch::NoGradGuard no_grad;
    weight.master.neg_();
  }
  weight.Ternarise(context_.stream);
  EXPECT_FALSE(torch::equal(tiles, weight.tiles));
  EXPECT_TRUE(torch::equal(scale, weight.scale));
}

}  // namespace
}  // namespace nibble::trainer
