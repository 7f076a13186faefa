// With an exact forward pass, training computes the logits of the int8 model.
#include "server/trainer/int8_mixed_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/convert/convert.h"
#include "server/trainer/full_model.h"
#include "server/trainer/weights_recipe.h"
#include "tests/server/trainer/exact_model_fixture.h"

namespace nibble::trainer {
namespace {

class Int8MixedModelTest : public ExactModelTest {
 protected:
  Int8MixedModelTest() : base_(Open(models_.bf16())) {}

  std::unique_ptr<ExactModel> Make(Int8MixedOptions options = {}) {
    options.max_positions = 32;
    options.cancelled = cancel_.callback();
    auto made = MakeInt8MixedModel(*base_, options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  // The fast form, whose forward pass is not exact: a float model with int8 products in the linears `targets`.
  std::unique_ptr<FullModel> MakeFast(const Int8LinearOptions& how, std::vector<int> targets = {0, 1, 2, 3, 4, 5, 6},
                                      bool bf16_compute = false, bool bf16_masters = false) {
    Int8Products products = {.how = how};
    for (const int kind : targets) products.targets[static_cast<std::size_t>(kind)] = true;
    auto made = FullModel::Create(
        *base_, {.bf16_compute = bf16_compute, .bf16_parameters = bf16_masters, .int8 = products, .max_positions = 32},
        stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  struct PassResult {
    double loss = 0;
    std::vector<std::vector<float>> gradients;
  };
  PassResult Run(TrainingModel& model, std::uint64_t draw = 0) {
    model.ZeroGrad();
    const auto loss = model.ForwardBackward(Batch(), 0.5, draw);
    EXPECT_TRUE(loss.ok()) << loss.status();
    PassResult result = {loss.value_or(NAN), {}};
    for (const Parameter& parameter : model.parameters()) result.gradients.push_back(Floats(parameter.grad));
    return result;
  }
  // The cosine between the gradients of all parameters together.
  static double Cosine(const PassResult& a, const PassResult& b) {
    double dot = 0, of_a = 0, of_b = 0;
    for (std::size_t i = 0; i < a.gradients.size(); ++i) {
      for (std::size_t j = 0; j < a.gradients[i].size(); ++j) {
        const double x = a.gradients[i][j], y = b.gradients[i][j];
        dot += x * y, of_a += x * x, of_b += y * y;
      }
    }
    return dot / std::sqrt(of_a * of_b);
  }

  // The int8 model that `models convert` makes of the trained weights.
  std::shared_ptr<const model::LoadedModel> Converted(ExactModel& model, int outliers, const std::string& name) {
    const auto values = model.Values();
    const auto written = convert::MakeTrainedModel(
        base::RealFileSystem(), base_->config(),
        {.kv_dtype = base_->info().kv_dtype, .trained_outliers = outliers, .dtype = StoredType(values.front().type)},
        TrainedTensors(values), base_->directory(), base::Json::object(), models_.Path(name));
    EXPECT_TRUE(written.ok()) << written.status();
    const auto trained = model::Artifact::Open(models_.Path(name));
    const auto made =
        convert::ConvertModel(base::RealFileSystem(), **trained, models_.Path(name + "-int8"), {}, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->info.act_outliers, outliers);
    EXPECT_FALSE(made->info.int8_head);
    return models_.Load(models_.Path(name + "-int8"));
  }

  std::unique_ptr<model::Artifact> base_;
};

TEST_F(Int8MixedModelTest, TrainingGivesTheBitsOfTheConvertedModel) {
  for (const bool bf16_masters : {false, true}) {
    for (const int outliers : {8, 0}) {
      SCOPED_TRACE(testing::Message() << outliers << (bf16_masters ? ", bf16 masters" : ""));
      Int8MixedOptions options = {.bf16_masters = bf16_masters};
      options.products.rows.max_outliers = outliers;
      const auto model = Make(options);
      const std::vector<std::string> untrained = Training(*model);
      Step(*model);
      const std::vector<std::string> trained = Training(*model);
      ASSERT_EQ(trained.size(), Batch().tokens.size());
      EXPECT_NE(trained, untrained);
      EXPECT_EQ(Serving(model->ServingWeights()), trained);
      const auto served =
          Converted(*model, outliers, "trained-" + std::to_string(outliers) + (bf16_masters ? "-bf16" : ""));
      EXPECT_EQ(Serving(served->weights()), trained);
    }
  }
}

// The families have untied heads, biases, norms of heads, and norms within blocks.
TEST_F(Int8MixedModelTest, EveryFamilyTrainsTheBitsThatItServes) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    SCOPED_TRACE(family);
    base_ = Open(Import(family));
    for (const bool bf16_masters : {false, true}) {
      const auto model = Make({.bf16_masters = bf16_masters});
      EXPECT_EQ(Run(*model).gradients,
                Run(*Make({.bf16_masters = bf16_masters, .activation_checkpointing = true})).gradients);
      Step(*model);
      const auto served = Converted(*model, 8, family + (bf16_masters ? "-trained-bf16" : "-trained"));
      EXPECT_EQ(Serving(served->weights()), Training(*model)) << bf16_masters;
    }
  }
}

TEST_F(Int8MixedModelTest, MastersInBf16HaveTheGradientsOfEqualMastersInF32) {
  for (const std::string family : {"", "qwen2", "qwen3"}) {
    if (!family.empty()) base_ = Open(Import(family));
    for (int mask = 0; mask < 8; ++mask) {
      SCOPED_TRACE(testing::Message() << family << ", products " << mask);
      Int8MixedOptions options;
      options.products.forward = (mask & 1) != 0;
      options.products.grad_input = (mask & 2) != 0;
      options.products.grad_weight = (mask & 4) != 0;
      const std::vector<int> targets = {0, 3, 6};  // the others stay float
      ExpectGradientsOfEqualF32Parameters(
          *MakeFast(options.products, targets, /*bf16_compute=*/true, /*bf16_masters=*/true),
          *MakeFast(options.products, targets, /*bf16_compute=*/true), Batch());
      if (!options.products.forward) continue;
      const auto f32 = Make(options);
      options.bf16_masters = true;
      ExpectGradientsOfEqualF32Parameters(*Make(options), *f32, Batch());
    }
  }
}

// The random draws that round the operands of products do not depend on the type of the masters.
TEST_F(Int8MixedModelTest, MastersInBf16AreRoundedInProductsAsMastersInF32) {
  Int8LinearOptions how;
  how.stochastic_forward = how.stochastic_gradients = true;
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6};
  ExpectGradientsOfEqualF32Parameters(*MakeFast(how, all, /*bf16_compute=*/true, /*bf16_masters=*/true),
                                      *MakeFast(how, all, /*bf16_compute=*/true), Batch(), /*draw=*/5);
}

TEST_F(Int8MixedModelTest, StoreOfMastersInBf16DependsOnTheSeed) {
  const auto after_step = [&](std::uint64_t seed) {
    const auto model = Make({.bf16_masters = true});
    Step(*model, 1, seed);
    return Training(*model);
  };
  const auto one = after_step(1);
  EXPECT_EQ(after_step(1), one);
  EXPECT_NE(after_step(2), one);
}

TEST_F(Int8MixedModelTest, CheckpointingGivesTheSameBits) {
  Int8MixedOptions options;
  options.products.stochastic_gradients = true;
  const PassResult kept = Run(*Make(options), 3);
  options.activation_checkpointing = true;
  const PassResult recomputed = Run(*Make(options), 3);
  EXPECT_EQ(kept.loss, recomputed.loss);
  EXPECT_EQ(kept.gradients, recomputed.gradients);
  EXPECT_NE(Run(*Make(options), 4).gradients, kept.gradients);
}

TEST_F(Int8MixedModelTest, GradientsPointWhereThoseOfFloatPoint) {
  const auto reference = FullModel::Create(*base_, {.bf16_compute = false, .max_positions = 32}, stream_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const PassResult want = Run(**reference);
  // The parameters of the two models have different orders.
  const auto in_order = [&](TrainingModel& model) {
    const PassResult got = Run(model);
    PassResult sorted = {got.loss, {}};
    for (const Parameter& parameter : (*reference)->parameters()) {
      for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        if (model.parameters()[i].name == parameter.name) sorted.gradients.push_back(got.gradients[i]);
      }
    }
    return sorted;
  };
  for (const bool grad_input : {false, true}) {
    for (const bool grad_weight : {false, true}) {
      Int8MixedOptions options;
      options.products.grad_input = grad_input;
      options.products.grad_weight = grad_weight;
      const auto exact = Make(options);
      const auto fast = MakeFast(options.products);
      for (TrainingModel* model : {static_cast<TrainingModel*>(exact.get()), static_cast<TrainingModel*>(fast.get())}) {
        const PassResult got = in_order(*model);
        EXPECT_NEAR(got.loss, want.loss, 0.02 * want.loss);
        EXPECT_GT(Cosine(got, want), 0.98) << grad_input << grad_weight;
      }
    }
  }
}

TEST_F(Int8MixedModelTest, FastFormTakesEveryOption) {
  const auto reference = FullModel::Create(*base_, {.bf16_compute = false, .max_positions = 32}, stream_);
  const PassResult want = Run(**reference);
  std::vector<Int8LinearOptions> all(5);
  all[0].forward = false;
  all[0].rows.max_outliers = 0;
  all[1].rows.max_outliers = 0;
  all[1].rows.activations.per_tensor = true;
  all[2].weight_per_tensor = true;
  all[3].stochastic_forward = true;
  all[4].grad_per_tensor = all[4].stochastic_gradients = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const PassResult got = Run(*MakeFast(all[i]), 1);
    EXPECT_NE(got.gradients, want.gradients) << i;
    EXPECT_GT(Cosine(got, want), 0.95) << i;
  }
  EXPECT_EQ(Run(*MakeFast({}, {})).gradients, want.gradients) << "no target: all products stay float";
}

TEST_F(Int8MixedModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  const auto model = Make();
  cancel_.Restart(0);
  const PassResult whole = Run(*model);
  const int calls = cancel_.calls();
  EXPECT_GT(calls, 2 * 7);  // one for each linear of the two layers, in the forward pass alone
  for (int at = 1; at <= calls; ++at) {
    cancel_.Restart(at);
    EXPECT_EQ(model->ForwardBackward(Batch(), 1.0, 0).status().code(), absl::StatusCode::kCancelled) << at;
    EXPECT_EQ(cancel_.calls(), at) << "nothing runs after the cancellation";
  }
  cancel_.Restart(0);
  EXPECT_EQ(Run(*model).gradients, whole.gradients);
}

TEST_F(Int8MixedModelTest, RefusesWhatItCannotTrainExactly) {
  const auto nf4 = model::Artifact::Open(models_.nf4());
  EXPECT_TRUE(absl::IsInvalidArgument(MakeInt8MixedModel(**nf4, {.max_positions = 32}, stream_).status()));
  std::vector<Int8MixedOptions> bad(4, {.max_positions = 32});
  bad[0].products.forward = false;
  bad[1].products.stochastic_forward = true;
  bad[2].products.weight_per_tensor = true;
  bad[3].products.rows.activations.per_tensor = true;
  for (const Int8MixedOptions& options : bad) {
    EXPECT_TRUE(absl::IsInvalidArgument(MakeInt8MixedModel(*base_, options, stream_).status()));
  }
}

}  // namespace
}  // namespace nibble::trainer
