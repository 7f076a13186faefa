#include "server/trainer/full_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "server/convert/convert.h"
#include "server/data/evaluate.h"
#include "server/model/import.h"
#include "server/trainer/torch_runtime.h"
#include "server/trainer/weights_recipe.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/bf16_parameters.h"
#include "tests/server/trainer/finite_differences.h"
#include "tests/support/cancel_at.h"

namespace nibble::trainer {
namespace {

class FullModelTest : public testing::Test {
 protected:
  FullModelTest() {
    stream_.library = library_.get();
    auto base = model::Artifact::Open(models_.bf16());
    EXPECT_TRUE(base.ok()) << base.status();
    base_ = *std::move(base);
  }

  std::unique_ptr<FullModel> Make(bool bf16_compute, bool checkpointing = false,
                                  std::optional<std::uint64_t> random_seed = std::nullopt) {
    auto model = FullModel::Create(*base_,
                                   {.bf16_compute = bf16_compute,
                                    .activation_checkpointing = checkpointing,
                                    .random_init = random_seed.has_value(),
                                    .init_seed = random_seed.value_or(0),
                                    .max_positions = 32,
                                    .cancelled = cancel_.callback()},
                                   stream_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  void Import(const std::string& family) {
    const std::string source = models_.Path(family + "-source"), directory = models_.Path(family);
    std::filesystem::copy(model::Golden("families/" + family), source);
    std::filesystem::copy(model::Golden("families/tokenizer.json"), source);
    const auto imported = model::ImportModel(base::RealFileSystem(), source, directory, kernels::DType::kF32);
    ASSERT_TRUE(imported.ok()) << imported.status();
    base_ = *model::Artifact::Open(directory);
  }
  data::MicroBatch Batch() const { return TwoSegments(base_->config().vocab_size); }

  struct PassResult {
    double loss = 0;
    std::vector<std::vector<float>> gradients;
  };
  PassResult Run(FullModel& model) {
    model.ZeroGrad();
    const auto loss = model.ForwardBackward(Batch(), 0.5, 0);
    EXPECT_TRUE(loss.ok()) << loss.status();
    PassResult result = {loss.value_or(NAN), {}};
    for (const Parameter& parameter : model.parameters()) {
      result.gradients.emplace_back(parameter.grad.f32().begin(), parameter.grad.f32().end());
    }
    return result;
  }

  support::CancelAt cancel_;
  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
  std::unique_ptr<model::Artifact> base_;
};

TEST_F(FullModelTest, GradientsMatchFiniteDifferences) {
  ExpectFiniteDifferences(*Make(/*bf16_compute=*/false), Batch());
}

// The families have untied heads, biases, norms of heads, and norms within blocks.
TEST_F(FullModelTest, GradientsOfEveryFamilyMatchFiniteDifferences) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    SCOPED_TRACE(family);
    Import(family);
    ExpectFiniteDifferences(*Make(/*bf16_compute=*/false), Batch());
    const PassResult kept = Run(*Make(/*bf16_compute=*/true)),
                     recomputed = Run(*Make(/*bf16_compute=*/true, /*checkpointing=*/true));
    EXPECT_EQ(kept.gradients, recomputed.gradients);
  }
}

TEST_F(FullModelTest, ParametersStartAsTheWeightsOfTheBase) {
  const auto model = Make(/*bf16_compute=*/true);
  const std::vector<model::TensorSpec> tensors = model::RequiredTensors(base_->config());
  ASSERT_EQ(model->parameters().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Parameter& parameter = model->parameters()[i];
    EXPECT_EQ(parameter.name, tensors[i].name);
    EXPECT_EQ(std::vector<float>(parameter.value.f32().begin(), parameter.value.f32().end()),
              *base_->FloatTensor(tensors[i].name));
  }
}

TEST_F(FullModelTest, RandomWeightsHaveTheirDeviationAndDependOnTheSeed) {
  const auto values = [&](std::uint64_t seed) {
    std::vector<std::vector<float>> all;
    const auto model = Make(/*bf16_compute=*/true, /*checkpointing=*/false, seed);
    for (const Parameter& p : model->parameters()) all.emplace_back(p.value.f32().begin(), p.value.f32().end());
    return all;
  };
  const auto drawn = values(1);
  EXPECT_EQ(drawn, values(1));
  const auto other = values(2);
  const std::vector<model::TensorSpec> tensors = model::RequiredTensors(base_->config());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float>& tensor = drawn[i];
    if (tensors[i].shape.size() != 2) {
      const float wanted = tensors[i].role == model::TensorRole::kBias ? 0.0f : 1.0f;
      EXPECT_EQ(tensor, std::vector<float>(tensor.size(), wanted)) << tensors[i].name;
      continue;
    }
    EXPECT_NE(tensor, other[i]) << tensors[i].name;
    double sum = 0;
    for (const float x : tensor) sum += static_cast<double>(x) * x;
    // The relative standard error of the deviation of n values is 1 / sqrt(2 n); the bound is four times that.
    const auto n = static_cast<double>(tensor.size());
    EXPECT_NEAR(std::sqrt(sum / n), 0.02, 0.02 * 4 / std::sqrt(2 * n)) << tensors[i].name;
  }
}

TEST_F(FullModelTest, Bf16ProductsChangeLossAndGradientsLittle) {
  const PassResult exact = Run(*Make(/*bf16_compute=*/false)), rounded = Run(*Make(/*bf16_compute=*/true));
  EXPECT_NE(exact.loss, rounded.loss);
  EXPECT_NEAR(exact.loss, rounded.loss, 0.01 * exact.loss);
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    double dot = 0, a = 0, b = 0;
    for (std::size_t j = 0; j < exact.gradients[i].size(); ++j) {
      const double x = exact.gradients[i][j], y = rounded.gradients[i][j];
      dot += x * y, a += x * x, b += y * y;
    }
    EXPECT_GT(dot / std::sqrt(a * b), 0.99) << model::RequiredTensors(base_->config())[i].name;
  }
}

TEST_F(FullModelTest, CheckpointingGivesTheSameBits) {
  for (const bool bf16 : {false, true}) {
    const PassResult kept = Run(*Make(bf16)), recomputed = Run(*Make(bf16, /*checkpointing=*/true));
    EXPECT_EQ(kept.loss, recomputed.loss);
    EXPECT_EQ(kept.gradients, recomputed.gradients);
  }
}

// With f32 parameters, the model that a job writes is f32, and so are its evaluations, whatever the compute type.
TEST_F(FullModelTest, EvaluatesTheModelThatItWouldWrite) {
  const auto model = Make(/*bf16_compute=*/true);
  for (Parameter& parameter : model->parameters()) {
    for (float& value : parameter.value.f32()) value *= 1.001f;  // no longer bf16 values
  }
  ASSERT_TRUE(model->Refresh().ok());
  const auto written = convert::MakeTrainedModel(base::RealFileSystem(), base_->config(),
                                                 {.kv_dtype = base_->info().kv_dtype}, TrainedTensors(model->Values()),
                                                 models_.bf16(), base::Json::object(), models_.Path("trained"));
  ASSERT_TRUE(written.ok()) << written.status();
  data::Example example;
  example.tokens = Batch().tokens;
  example.trained.assign(example.tokens.size(), 1);
  const data::ExampleList examples(std::vector<data::Example>{example});
  const auto always = [](std::int64_t) { return true; };
  const auto trained = data::Evaluate(base_->config(), model->ServingWeights(), examples, {}, stream_, always);
  const auto served =
      data::Evaluate(base_->config(), models_.Load(models_.Path("trained"))->weights(), examples, {}, stream_, always);
  ASSERT_TRUE(trained.ok() && served.ok()) << trained.status() << served.status();
  EXPECT_EQ(trained->loss, served->loss);
}

TEST_F(FullModelTest, ParametersInBF16HaveTheGradientsOfEqualOnesInF32) {
  for (const std::string family : {"", "qwen2", "qwen3"}) {
    SCOPED_TRACE(family);
    if (!family.empty()) Import(family);
    const auto bf16 = FullModel::Create(*base_, {.bf16_parameters = true, .max_positions = 32}, stream_);
    ASSERT_TRUE(bf16.ok()) << bf16.status();
    ExpectGradientsOfEqualF32Parameters(**bf16, *Make(/*bf16_compute=*/true), Batch());
  }
}

TEST_F(FullModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  for (const bool checkpointing : {false, true}) {
    const auto model = Make(/*bf16_compute=*/true, checkpointing);
    cancel_.Restart(0);
    const PassResult whole = Run(*model);
    const int calls = cancel_.calls();
    for (int at = 1; at <= calls; ++at) {
      cancel_.Restart(at);
      EXPECT_EQ(model->ForwardBackward(Batch(), 1.0, 0).status().code(), absl::StatusCode::kCancelled) << at;
      EXPECT_EQ(cancel_.calls(), at) << "nothing runs after the cancellation";
    }
    cancel_.Restart(0);
    EXPECT_EQ(Run(*model).gradients, whole.gradients);
  }
}

TEST_F(FullModelTest, RefusesABaseThatIsNotFloat) {
  const auto nf4 = model::Artifact::Open(models_.nf4());
  ASSERT_TRUE(nf4.ok()) << nf4.status();
  EXPECT_TRUE(absl::IsInvalidArgument(FullModel::Create(**nf4, {.max_positions = 32}, stream_).status()));
}

// An import of random weights draws what a job with random initial weights draws. The family has biases.
TEST_F(FullModelTest, ImportedRandomWeightsAreThoseOfTheSameSeed) {
  const std::string source = models_.Path("source"), directory = models_.Path("random");
  std::filesystem::copy(model::Golden("families/qwen2"), source);
  std::filesystem::copy(model::Golden("families/tokenizer.json"), source);
  std::filesystem::remove(source + "/model.safetensors");
  model::ImportOptions options;
  options.random = model::RandomInit{.seed = 11, .stream = stream_, .train_tokenizer = {}};
  const auto imported = model::ImportModel(base::RealFileSystem(), source, directory, kernels::DType::kF32, options);
  ASSERT_TRUE(imported.ok()) << imported.status();
  base_ = *model::Artifact::Open(directory);
  const auto read = Make(/*bf16_compute=*/false);
  const auto drawn = Make(/*bf16_compute=*/false, /*checkpointing=*/false, 11);
  const auto other = Make(/*bf16_compute=*/false, /*checkpointing=*/false, 12);
  ASSERT_EQ(read->parameters().size(), drawn->parameters().size());
  std::size_t differ = 0;
  for (std::size_t i = 0; i < read->parameters().size(); ++i) {
    const auto values = [i](FullModel& model) {
      const auto span = model.parameters()[i].value.f32();
      return std::vector<float>(span.begin(), span.end());
    };
    EXPECT_EQ(values(*read), values(*drawn)) << read->parameters()[i].name;
    differ += values(*read) != values(*other);
  }
  EXPECT_GT(differ, 10u);
}

}  // namespace
}  // namespace nibble::trainer
