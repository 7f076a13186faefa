// The BitNet model computes the same in training as its ternary form does in serving.
#include "server/trainer/bitnet_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/thread_pool.h"
#include "server/convert/convert.h"
#include "server/model/bitnet_shape.h"
#include "server/model/replay.h"
#include "server/trainer/weights_recipe.h"
#include "tests/server/trainer/bitnet_model_fixture.h"
#include "tests/support/cancel_at.h"
#include "tests/support/isas.h"
#include "tests/support/numeric.h"

namespace nibble::trainer {
namespace {

using kernels::Isa;
using model::Norm;

// docs/numerics.md 10: the training and the serving instantiation agree bit for bit, before and after steps; each on
// every instruction set, with and without threads, and serving for any chunking.
struct TrainIsServeCase {
  const char* golden;
  const char* preset;
  int act_bits = 8;
  ElementType masters = ElementType::kF32;
  std::vector<std::string> not_converted = {};
};
void PrintTo(const TrainIsServeCase& c, std::ostream* out) {
  *out << c.golden << " " << c.preset << " " << c.act_bits << " bits"
       << (c.masters == ElementType::kBF16 ? ", bf16 masters" : "");
  for (const std::string& name : c.not_converted) *out << " " << name;
}

class TrainIsServeTest : public BitNetModelTest, public ::testing::WithParamInterface<TrainIsServeCase> {
 protected:
  // A copy of the model with its current weights, for a trainer on `stream`. Derived values are also computed there.
  std::unique_ptr<ExactModel> OnStream(const kernels::Stream& stream) {
    auto made = MakeBitNetModel(*base_, config_, options_, stream);
    EXPECT_TRUE(made.ok()) << made.status();
    for (std::size_t i = 0; i < model_->parameters().size(); ++i) {
      const std::span<const std::byte> from = model_->parameters()[i].value.bytes();
      std::copy(from.begin(), from.end(), (*made)->parameters()[i].value.bytes().begin());
    }
    EXPECT_TRUE((*made)->Refresh().ok());
    return *std::move(made);
  }

  // Every instruction set of this machine, on the calling thread alone and with a pool of two.
  std::vector<kernels::Stream> Streams() {
    std::vector<kernels::Stream> streams;
    for (const Isa isa : support::Isas()) {
      streams.push_back(support::CpuStream(isa));
      streams.push_back(support::CpuStream(isa, &pool_));
    }
    return streams;
  }
  static std::string Name(const kernels::Stream& stream) {
    return std::string(kernels::Name(stream.isa)) + (stream.pool == nullptr ? ", one thread" : ", two threads");
  }

  kernels::ThreadPool pool_{2};
};

TEST_P(TrainIsServeTest, EveryRowOfLogitsHasTheSameBits) {
  const auto& [golden, preset, bits, masters, not_converted] = GetParam();
  BitNetOptions options = OptionsOf(model::BitNetInfoOf(preset, bits, not_converted));
  options.bf16_masters = masters == ElementType::kBF16;
  options.ste = kernels::Ste::kRoundOnly;
  Make(golden, preset, options);
  const auto tokens = Tokens(5, 33);
  for (int round = 0; round < 2; ++round) {
    const auto trained = TrainingDigests(*model_, tokens);
    ASSERT_EQ(trained.size(), 33u);
    for (const kernels::Stream& stream : Streams()) {
      EXPECT_EQ(TrainingDigests(*OnStream(stream), tokens), trained) << "trained, " << Name(stream);
      for (const std::int64_t chunk : {33, 7, 1}) {
        EXPECT_EQ(ServingDigests(tokens, chunk, stream), trained)
            << "served, " << Name(stream) << ", chunks of " << chunk;
      }
    }
    for (const Parameter& p : model_->parameters()) EXPECT_EQ(p.value.type, masters) << p.name;
    const auto before = trained;
    for (int step = 0; step < 3; ++step) Step(Batch({Tokens(7, 20), Tokens(8, 31)}), 1e-3);
    EXPECT_NE(TrainingDigests(*model_, tokens), trained);  // the steps changed the model
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TrainIsServeTest,
                         ::testing::Values(TrainIsServeCase{"hf_sharded_f32", "native"},
                                           TrainIsServeCase{"hf_sharded_f32", "bitnet-tips"},
                                           TrainIsServeCase{"hf_sharded_f32", "bitnet-2b4t"},
                                           TrainIsServeCase{"hf_sharded_f32", "native", 4},
                                           TrainIsServeCase{"hf_sharded_f32", "bitnet-tips", 16},
                                           TrainIsServeCase{"families/qwen2", "native"},
                                           TrainIsServeCase{"families/qwen3", "native"},
                                           TrainIsServeCase{"families/bitnet", "native"},
                                           TrainIsServeCase{"hf_sharded_f32", "bitnet-tips", 8, ElementType::kBF16},
                                           TrainIsServeCase{"families/qwen2", "bitnet-2b4t", 8, ElementType::kBF16},
                                           TrainIsServeCase{"families/qwen3", "native", 8, ElementType::kBF16}));

// The scales of transformers, and linears that stay float: alone behind their norm, or beside ternary ones.
INSTANTIATE_TEST_SUITE_P(
    Options, TrainIsServeTest,
    ::testing::Values(
        TrainIsServeCase{"hf_sharded_f32", "hf"}, TrainIsServeCase{"families/qwen2", "hf", 4, ElementType::kBF16},
        TrainIsServeCase{"hf_sharded_f32", "native", 8, ElementType::kF32, {"o_proj", "down_proj", "lm_head"}},
        TrainIsServeCase{"families/qwen2", "native", 8, ElementType::kF32, {"q_proj", "gate_proj"}},
        TrainIsServeCase{"families/qwen3", "hf", 8, ElementType::kF32, {"v_proj", "down_proj"}},
        TrainIsServeCase{"hf_sharded_f32", "bitnet-tips", 8, ElementType::kBF16, {"k_proj", "up_proj"}},
        TrainIsServeCase{
            "families/bitnet", "native", 16, ElementType::kF32, {"q_proj", "k_proj", "v_proj", "o_proj"}}));

// docs/numerics.md 9: a token's loss has the same bits whatever else is in its row.
TEST_F(BitNetModelTest, PackingChangesNoBitOfALoss) {
  Make("hf_sharded_f32", "native");
  const std::vector<std::vector<std::int32_t>> examples = {Tokens(1, 9), Tokens(2, 17), Tokens(3, 5)};
  std::vector<double> alone;
  for (const auto& example : examples) {
    const auto losses = TokenLosses(Batch({example}));
    alone.insert(alone.end(), losses.begin(), losses.end());
  }
  ASSERT_EQ(alone.size(), 8u + 16u + 4u);
  for (const std::size_t per_row : {1u, 2u, 3u}) {
    const auto packed = Batch(examples, per_row);
    EXPECT_EQ(TokenLosses(packed), alone) << per_row << " examples in a row";
    // Summed in the order of the tokens, as the model sums them.
    EXPECT_EQ(Loss(packed), std::accumulate(alone.begin(), alone.end(), 0.0) / static_cast<double>(alone.size()));
  }
}

TEST_F(BitNetModelTest, RecomputedLayersHaveTheSameGradients) {
  const auto gradients = [&](bool checkpointing) {
    BitNetOptions options;
    options.activation_checkpointing = checkpointing;
    Make("hf_sharded_f32", "bitnet-2b4t", options);
    return Pass(Batch({Tokens(1, 9), Tokens(2, 17)})).gradients;
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST_F(BitNetModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  support::CancelAt cancel;
  BitNetOptions options;
  options.activation_checkpointing = true;
  options.cancelled = cancel.callback();
  Make("hf_sharded_f32", "bitnet-2b4t", options);
  const int linears = static_cast<int>(config_.num_layers) * model::kNumLinearKinds;
  EXPECT_GE(cancel.calls(), linears) << "called for every linear";
  const auto batch = Batch({Tokens(1, 9), Tokens(2, 17)});
  const auto gradients = [&] {
    std::map<std::string, std::vector<float>> all;
    for (const Parameter& p : model_->parameters()) all[p.name] = {p.grad.f32().begin(), p.grad.f32().end()};
    return all;
  };
  cancel.Restart(0);
  const double loss = Loss(batch);
  const auto undisturbed = gradients();
  const int calls = cancel.calls();
  EXPECT_GE(calls, 3 * linears) << "forward, recomputed and backward";
  for (int at = 1; at <= calls; ++at) {
    cancel.Restart(at);
    EXPECT_EQ(model_->ForwardBackward(batch, 1.0, 0).status().code(), absl::StatusCode::kCancelled) << at;
  }
  cancel.Restart(0);
  EXPECT_EQ(Loss(batch), loss);
  EXPECT_EQ(gradients(), undisturbed);
}

// Refresh calls `cancelled` only so that the trainer can show a sign of life, and ignores the answer: a step that has
// begun to change parameters must finish.
TEST_F(BitNetModelTest, RefreshShowsLifeAndIsNotStopped) {
  support::CancelAt cancel;
  BitNetOptions options;
  options.cancelled = cancel.callback();
  Make("hf_sharded_f32", "bitnet-2b4t", options);
  cancel.Restart(1);
  EXPECT_TRUE(model_->Refresh().ok());
  EXPECT_EQ(cancel.calls(), config_.num_layers);
}

TEST_F(BitNetModelTest, EveryParameterGetsAGradient) {
  Make("families/qwen2", "bitnet-2b4t", {.ste = kernels::Ste::kRoundOnly, .scale_grad = true, .bf16_backward = false});
  Loss(Batch({Tokens(1, 9), Tokens(2, 17)}));
  for (const Parameter& p : model_->parameters()) {
    double sum = 0;
    for (const float g : p.grad.f32()) sum += std::fabs(static_cast<double>(g));
    EXPECT_TRUE(std::isfinite(sum) && sum > 0) << p.name;
  }
}

// With a ramp and without, recomputed and not. In a block with ternary and float linears, each ternary linear quantizes
// its input rows itself, also for the gradient of their scales.
TEST_F(BitNetModelTest, EveryParameterBesideFloatLinearsGetsAGradient) {
  std::vector<std::map<std::string, std::vector<float>>> gradients;
  for (const double share : {0.5, 1.0}) {
    for (const bool checkpointing : {false, true}) {
      BitNetOptions options = OptionsOf(model::BitNetInfoOf("native", 8, {"q_proj", "up_proj", "down_proj"}));
      options.ste = kernels::Ste::kRoundOnly;
      options.scale_grad = true;
      options.ramp = {.from = share, .steps = 2};
      options.bf16_backward = false;
      options.activation_checkpointing = checkpointing;
      Make("families/qwen2", "native", options);
      gradients.push_back(Pass(Batch({Tokens(1, 9), Tokens(2, 17)})).gradients);
      for (const auto& [name, gradient] : gradients.back()) {
        double sum = 0;
        for (const float g : gradient) sum += std::fabs(static_cast<double>(g));
        EXPECT_TRUE(std::isfinite(sum) && sum > 0) << name;
      }
    }
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[2], gradients[3]);
}

TEST_F(BitNetModelTest, MemorizesASequence) {
  Make("hf_sharded_f32", "bitnet-tips", {.random_init = true});
  const auto batch = Batch({Tokens(11, 24)});
  const double first = Step(batch, 1e-2);
  double last = first;
  for (int step = 0; step < 80; ++step) last = Step(batch, 1e-2);
  EXPECT_LT(last, 0.1 * first);
}

TEST_F(BitNetModelTest, MastersInBf16HaveTheGradientsOfEqualMastersInF32) {
  for (const kernels::Ste ste : {kernels::Ste::kIdentity, kernels::Ste::kRoundOnly}) {
    Make("families/qwen2", "bitnet-2b4t", {.ste = ste, .bf16_masters = true});
    const auto bf16 = std::move(model_);
    Make("families/qwen2", "bitnet-2b4t", {.ste = ste});
    ExpectGradientsOfEqualF32Parameters(*bf16, *model_, Batch({Tokens(1, 9), Tokens(2, 17)}));
  }
}

// Compares the gradient with a finite difference of the loss, taken along the gradient. Only the rounding of the codes
// makes them differ.
TEST_F(BitNetModelTest, GradientOfTheFinalNormIsTheSlopeOfTheLoss) {
  Make("hf_sharded_f32", "native", {.bf16_backward = false});
  const auto batch = Batch({Tokens(1, 30)});
  Loss(batch);
  const Parameter& norm = Named(model::kFinalNormName);
  const std::vector<float> gradient(norm.grad.f32().begin(), norm.grad.f32().end());
  double slope = 0;
  for (const float g : gradient) slope += static_cast<double>(g) * g;
  const auto at = [&](float distance) {
    for (std::size_t i = 0; i < gradient.size(); ++i) norm.value.f32()[i] += distance * gradient[i];
    EXPECT_TRUE(model_->Refresh().ok());
    const double loss = Loss(batch);
    for (std::size_t i = 0; i < gradient.size(); ++i) norm.value.f32()[i] -= distance * gradient[i];
    return loss;
  };
  const float h = static_cast<float>(1e-2 / std::sqrt(slope));
  EXPECT_NEAR((at(h) - at(-h)) / (2.0 * h), slope, 2e-2 * slope);
}

TEST_F(BitNetModelTest, SeedDeterminesRandomWeights) {
  const auto weight_of = [&](std::uint64_t seed) {
    Make("hf_sharded_f32", "native", {.random_init = true, .init_seed = seed});
    return Values(model::ModulePath(0, model::LinearKind::kQ) + ".weight");
  };
  const auto one = weight_of(1);
  EXPECT_EQ(weight_of(1), one);
  EXPECT_NE(weight_of(2), one);
  double sum = 0, squares = 0;
  for (const float w : one) {
    sum += w;
    squares += static_cast<double>(w) * w;
  }
  const auto n = static_cast<double>(one.size());
  // N(0, 0.02^2): mean and deviation within five standard errors.
  EXPECT_NEAR(sum / n, 0.0, 5 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 5 * 0.02 / std::sqrt(2 * n));
  for (const float w : Values(model::kFinalNormName)) EXPECT_EQ(w, 1.0f);
}

TEST_F(BitNetModelTest, NormsBeforeLinearsStartAsTheNormOfTheirBlock) {
  Make("hf_sharded_f32", "native");
  const auto input = Values(model::NormName(0, Norm::kInput)), post = Values(model::NormName(0, Norm::kPostAttention));
  Make("hf_sharded_f32", "bitnet-tips");
  EXPECT_EQ(Values(model::NormName(0, Norm::kBeforeQ)), input);
  EXPECT_EQ(Values(model::NormName(0, Norm::kBeforeV)), input);
  EXPECT_EQ(Values(model::NormName(0, Norm::kBeforeUp)), post);
  for (const float w : Values(model::NormName(0, Norm::kBeforeDown))) EXPECT_EQ(w, 1.0f);
  for (const Parameter& p : model_->parameters()) EXPECT_EQ(p.name.find("layernorm"), std::string::npos) << p.name;
}

// docs/faults.md, T3: publishing still needs values and logits.
TEST_F(BitNetModelTest, ReleaseOfGradientsKeepsValuesAndLogits) {
  Make("hf_sharded_f32", "bitnet-2b4t");
  Step(Batch({Tokens(7, 20)}), 1e-3);
  const auto tokens = Tokens(5, 33);
  const auto digests = TrainingDigests(*model_, tokens);
  std::vector<std::vector<float>> values;
  for (const Parameter& p : model_->parameters()) values.emplace_back(p.value.f32().begin(), p.value.f32().end());
  model_->ReleaseGradients();
  EXPECT_EQ(TrainingDigests(*model_, tokens), digests);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& p = model_->parameters()[i];
    EXPECT_EQ(std::vector<float>(p.value.f32().begin(), p.value.f32().end()), values[i]) << p.name;
    EXPECT_TRUE(p.grad.f32().empty()) << p.name;
  }
}

class ConvertedMastersTest
    : public BitNetModelTest,
      public ::testing::WithParamInterface<std::tuple<kernels::DType, const char*, std::vector<std::string>>> {};

// Conversion makes the same ternary bits as training, and rounds embedding, head and float linears in the same way.
TEST_P(ConvertedMastersTest, HaveTheLogitsOfTraining) {
  const auto& [dtype, preset, not_converted] = GetParam();
  const model::BitNetInfo bitnet = model::BitNetInfoOf(preset, 4, not_converted);
  BitNetOptions options = OptionsOf(bitnet);
  options.bf16_masters = dtype == kernels::DType::kBF16;
  Make("hf_sharded_f32", preset, options);
  Step(Batch({Tokens(7, 20)}), 1e-3);
  const auto info = convert::MakeTrainedModel(base::RealFileSystem(), config_, {.bitnet = bitnet, .dtype = dtype},
                                              TrainedTensors(model_->Values()), directory_.Path("base"), {{"step", 1}},
                                              directory_.Path("masters"));
  ASSERT_TRUE(info.ok()) << info.status();
  const auto masters = model::Artifact::Open(directory_.Path("masters"));
  ASSERT_TRUE(masters.ok()) << masters.status();
  EXPECT_EQ((*masters)->config().norms, config_.norms);
  EXPECT_EQ((*masters)->info().bitnet->scaling, bitnet.scaling);
  EXPECT_EQ((*masters)->info().bitnet->float_linears, bitnet.float_linears);
  for (const Parameter& p : model_->parameters()) {
    const model::TensorView& stored = (*masters)->tensors().at(p.name);
    EXPECT_EQ(stored.dtype, dtype);
    EXPECT_TRUE(support::BytesEqual(stored.bytes.data(), p.value.data, p.value.bytes().size())) << p.name;
  }
  const auto made = convert::ConvertModel(base::RealFileSystem(), **masters, directory_.Path("ternary"),
                                          {.to = model::Format::kTernary}, stream_);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto loaded = model::LoadedModel::Load(directory_.Path("ternary"), {.max_positions = 64}, stream_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto tokens = Tokens(5, 33);
  const auto record = model::MakeRecord(**loaded, {tokens}, stream_);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->sequences[0].row_digests, TrainingDigests(*model_, tokens));
}

using ConvertedMasters = std::tuple<kernels::DType, const char*, std::vector<std::string>>;
INSTANTIATE_TEST_SUITE_P(Options, ConvertedMastersTest,
                         ::testing::Values(ConvertedMasters{kernels::DType::kF32, "bitnet-tips", {}},
                                           ConvertedMasters{kernels::DType::kBF16, "bitnet-tips", {}},
                                           ConvertedMasters{kernels::DType::kF32, "hf", {}},
                                           ConvertedMasters{kernels::DType::kF32, "hf", {"v_proj", "down_proj"}},
                                           ConvertedMasters{kernels::DType::kBF16, "native", {"o_proj", "up_proj"}}));

}  // namespace
}  // namespace nibble::trainer
