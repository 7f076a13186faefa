// Compares BitLinear with an eager PyTorch module: tests/golden/trainer/make_bit_linear_golden.py.
#include "server/trainer/bit_linear.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/quantize/dequantize_ternary.h"
#include "server/base/files.h"
#include "server/model/artifact.h"
#include "server/model/import.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"
#include "server/trainer/bitnet_model.h"
#include "server/trainer/torch_bridge.h"
#include "server/trainer/weights_recipe.h"
#include "tests/server/trainer/bit_linear_fixture.h"
#include "tests/support/golden.h"
#include "tests/support/numeric.h"
#include "tests/support/temp_directory.h"

namespace nibble::trainer {
namespace {

using torch::Tensor;

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
    weight.Ternarize(context_.stream);
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
  weight.Ternarize(context_.stream, kernels::RowScaling::kReciprocal);
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
  for (const auto& [name, ste] : {std::pair("round_only_scaled", kernels::Ste::kRoundOnly),
                                  std::pair("clipped_scaled", kernels::Ste::kClipped)}) {
    const Case c = {.name = name, .norm = true, .options = With(ste, true)};
    Run run = Forward(c);
    const Tensor tiles = run.weight.tiles.clone();
    run.weight.Ternarize(context_.stream, kernels::RowScaling::kReciprocal);
    EXPECT_TRUE(torch::equal(run.weight.tiles, tiles));
    EXPECT_EQ(run.weight.scale[0].item<float>(),
              kernels::ReciprocalScale(Golden(c.name + ".scale_w", {1})[0].item<float>()));
    const Tensor y = ApplyBitLinear(run.input, run.weight, c.options, context_);
    (y * Golden(c.name + ".g", {5, 12})).sum().backward();
    ExpectNear(run.weight.master.grad(), Golden(c.name + ".grad_weight", {12, 40}));
  }
}

TEST_F(BitLinearTest, TernarizeIsRepeatableAndFollowsTheMaster) {
  BitWeight weight;
  weight.master = torch::randn({16, 32}).requires_grad_();
  weight.Ternarize(context_.stream);
  const Tensor tiles = weight.tiles.clone(), scale = weight.scale.clone();
  weight.Ternarize(context_.stream);
  EXPECT_TRUE(torch::equal(tiles, weight.tiles) && torch::equal(scale, weight.scale));
  {
    const torch::NoGradGuard no_grad;
    weight.master.neg_();
  }
  weight.Ternarize(context_.stream);
  EXPECT_FALSE(torch::equal(tiles, weight.tiles));
  EXPECT_TRUE(torch::equal(scale, weight.scale));
}

}  // namespace
}  // namespace nibble::trainer
