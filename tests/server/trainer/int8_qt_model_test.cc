// Int8 quantized training: the parameters are the bytes of the int8 model, and training computes its logits.
#include "server/trainer/int8_qt_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/convert/convert.h"
#include "server/model/stored_tensors.h"
#include "server/trainer/full_model.h"
#include "server/trainer/int8_values.h"
#include "server/trainer/weights_recipe.h"
#include "tests/server/trainer/exact_model_fixture.h"
#include "tests/support/numeric.h"

namespace nibble::trainer {
namespace {

class Int8QtModelTest : public ExactModelTest {
 protected:
  Int8QtModelTest() : base_(Open(models_.bf16())) {}

  std::unique_ptr<ExactModel> Make(Int8QtOptions options = {}) {
    options.max_positions = 32;
    options.cancelled = cancel_.callback();
    auto made = MakeInt8QtModel(*base_, options, stream_);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }
  // The gradients in f32, by parameter.
  std::map<std::string, std::vector<float>> Gradients(TrainingModel& model) {
    model.ZeroGrad();
    const auto loss = model.ForwardBackward(Batch(), 0.5, 0);
    EXPECT_TRUE(loss.ok()) << loss.status();
    std::map<std::string, std::vector<float>> gradients;
    for (const Parameter& parameter : model.parameters()) gradients[parameter.name] = Floats(parameter.grad);
    return gradients;
  }
  // The int8 model that the job writes.
  std::string Written(ExactModel& model, int outliers, const std::string& name, bool weight_only = false) {
    const auto written = convert::MakeTrainedModel(
        base::RealFileSystem(), base_->config(),
        {.trained_outliers = outliers, .weight_only = weight_only, .dtype = kernels::DType::kI8},
        TrainedTensors(model.Values()), base_->directory(), base::Json::object(), models_.Path(name));
    EXPECT_TRUE(written.ok()) << written.status();
    return models_.Path(name);
  }

  std::unique_ptr<model::Artifact> base_;
};

TEST_F(Int8QtModelTest, StartsWithTheCodesOfTheConvertedBase) {
  const auto converted = convert::ConvertModel(base::RealFileSystem(), *base_, models_.Path("int8"),
                                               {.act_outliers = 0, .int8_head = false}, stream_);
  ASSERT_TRUE(converted.ok()) << converted.status();
  const auto model = Make();
  EXPECT_EQ(Serving(models_.Load(models_.Path("int8"))->weights()), Training(*model));
  EXPECT_EQ(model::Artifact::Open(Written(*model, 0, "start")).value()->info().weights_digest,
            converted->info.weights_digest);
}

TEST_F(Int8QtModelTest, ParametersAreTheBytesOfTheArtifact) {
  for (const int outliers : {0, 8}) {
    const auto model = Make({.max_outliers = outliers});
    const std::vector<std::string> before = Training(*model);
    Step(*model);
    const std::vector<std::string> trained = Training(*model);
    EXPECT_NE(trained, before);
    EXPECT_EQ(Serving(model->ServingWeights()), trained);
    EXPECT_EQ(Training(*model), trained) << "after an evaluation";
    const std::string directory = Written(*model, outliers, "trained-" + std::to_string(outliers));
    EXPECT_EQ(Serving(models_.Load(directory)->weights()), trained);
    const auto artifact = *model::Artifact::Open(directory);
    EXPECT_EQ(artifact->info().act_outliers, outliers);
    int linears = 0;
    for (const Parameter& parameter : model->parameters()) {
      if (parameter.value.type != ElementType::kInt8) continue;
      const auto codes = artifact->Tensor(parameter.name);
      const auto scales = artifact->Tensor(parameter.name + model::kInt8ScaleSuffix);
      ASSERT_TRUE(codes.ok() && scales.ok());
      EXPECT_TRUE(support::BytesEqual(codes->bytes.data(), parameter.value.data, codes->bytes.size()));
      EXPECT_TRUE(support::BytesEqual(scales->bytes.data(), parameter.value.scales, scales->bytes.size()));
      ++linears;
    }
    EXPECT_EQ(linears, base_->config().num_layers * model::kNumLinearKinds);
  }
}

// The families have untied heads, biases, norms of heads, and norms within blocks.
TEST_F(Int8QtModelTest, EveryFamilyTrainsTheBitsThatItServes) {
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    SCOPED_TRACE(family);
    base_ = Open(Import(family));
    const auto model = Make();
    EXPECT_EQ(Gradients(*model), Gradients(*Make({.activation_checkpointing = true})));
    Step(*model);
    EXPECT_EQ(Serving(models_.Load(Written(*model, 0, family + "-trained"))->weights()), Training(*model));
  }
}

// Rows in bf16: the served model is weight-only, and its bits are those of training too.
TEST_F(Int8QtModelTest, FloatRowsTrainTheBitsOfTheWeightOnlyModel) {
  for (const std::string family : {"", "llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    SCOPED_TRACE(family);
    if (!family.empty()) base_ = Open(Import(family));
    const auto model = Make({.float_rows = true});
    EXPECT_EQ(Gradients(*model), Gradients(*Make({.float_rows = true, .activation_checkpointing = true})));
    EXPECT_NE(Training(*model), Training(*Make()));
    Step(*model);
    const std::vector<std::string> trained = Training(*model);
    EXPECT_EQ(Serving(model->ServingWeights()), trained);
    EXPECT_EQ(Training(*model), trained) << "after an evaluation";
    const auto loaded = models_.Load(Written(*model, 0, family + "-weight-only", true));
    EXPECT_TRUE(loaded->info().weight_only);
    EXPECT_EQ(Serving(loaded->weights()), trained);
  }
}

// The float model has the values of the codes. Only the rounding of activation rows makes the gradients differ.
TEST_F(Int8QtModelTest, GradientsAgreeWithThoseOfTheSameWeightsInFloat) {
  const auto model = Make({.bf16_compute = false});
  std::vector<std::vector<float>> values;
  for (const TensorRef& value : model->Values()) {
    std::vector<float>& widened = values.emplace_back(static_cast<std::size_t>(value.count));
    if (value.type == ElementType::kInt8) {
      WidenInt8(value, widened);
    } else {
      widened.assign(value.f32().begin(), value.f32().end());
    }
  }
  std::vector<convert::TrainedTensor> tensors;
  for (const std::vector<float>& value : values) tensors.push_back({std::as_bytes(std::span(value))});
  ASSERT_TRUE(convert::MakeTrainedModel(base::RealFileSystem(), base_->config(), {.kv_dtype = kernels::DType::kF32},
                                        tensors, base_->directory(), base::Json::object(), models_.Path("float"))
                  .ok());
  const auto base = *model::Artifact::Open(models_.Path("float"));
  const auto reference = FullModel::Create(*base, {.bf16_compute = false, .max_positions = 32}, stream_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto want = Gradients(**reference);
  const auto expect_near = [&](const Int8QtOptions& options, double min_cosine, double max_stretch) {
    const auto got = Gradients(*Make(options));
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, gradient] : got) {
      double dot = 0, of_got = 0, of_want = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double x = gradient[i], y = want.at(name)[i];
        dot += x * y, of_got += x * x, of_want += y * y;
      }
      EXPECT_GT(dot / std::sqrt(of_got * of_want), min_cosine) << name;
      EXPECT_NEAR(std::sqrt(of_got / of_want), 1.0, max_stretch) << name;
    }
  };
  for (const bool bf16 : {false, true}) {
    expect_near({.bf16_compute = bf16}, 0.95, 0.15);
    // bf16 rounds an element relative to its own size, a code relative to the largest element of its row.
    expect_near({.float_rows = true, .bf16_compute = bf16}, 0.999, 0.02);
  }
}

TEST_F(Int8QtModelTest, GradientsOfMicroBatchesAddUp) {
  const auto model = Make({.bf16_compute = false});
  const auto once = Gradients(*model);
  ASSERT_TRUE(model->ForwardBackward(Batch(), 0.5, 1).ok());
  for (const Parameter& parameter : model->parameters()) {
    // A tied embedding gets two parts from each micro-batch, so its four parts are added in another order.
    const auto& want = once.at(parameter.name);
    float largest = 0;
    for (const float x : want) largest = std::max(largest, std::abs(x));
    const double bound = parameter.name == model::kEmbeddingName ? 8 * support::kEpsF32 * largest : 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(parameter.grad.f32()[i], 2 * want[i], bound) << parameter.name;
    }
  }
}

// Codes and an f32 scale per row, as in torchao, on the shape of a linear of SmolLM2. Gradients of linears are bf16.
TEST_F(Int8QtModelTest, WeightsOfLinearsTakeHalfOfBF16) {
  constexpr std::int64_t kRows = 1536, kCols = 576;
  const TensorBuffer weight(ElementType::kInt8, kRows * kCols, kCols);
  const std::int64_t bytes = weight.ref().num_bytes() + weight.ref().num_scales() * 4;
  EXPECT_LE(static_cast<double>(bytes), 0.51 * static_cast<double>(2 * kRows * kCols));
  const auto model = Make();
  for (const Parameter& parameter : model->parameters()) {
    const bool linear = parameter.value.type == ElementType::kInt8;
    EXPECT_EQ(parameter.grad.type, linear ? ElementType::kBF16 : ElementType::kF32) << parameter.name;
  }
}

TEST_F(Int8QtModelTest, OneScalePerWeightIsServedToo) {
  const auto model = Make({.one_scale = true});
  Step(*model);
  for (const Parameter& parameter : model->parameters()) {
    if (parameter.value.type != ElementType::kInt8) continue;
    for (std::int64_t r = 1; r < parameter.value.num_scales(); ++r) {
      ASSERT_EQ(parameter.value.scales[r], parameter.value.scales[0]);
    }
  }
  EXPECT_EQ(Serving(models_.Load(Written(*model, 0, "one-scale"))->weights()), Training(*model));
}

TEST_F(Int8QtModelTest, OnlyStochasticRoundingDependsOnTheSeed) {
  const auto codes_after = [this](bool stochastic, std::uint64_t seed) {
    const auto model = Make({.stochastic_rounding = stochastic});
    Step(*model, 1, seed);
    std::vector<std::byte> codes;
    for (const Parameter& parameter : model->parameters()) {
      if (parameter.value.type != ElementType::kInt8) continue;
      codes.insert(codes.end(), parameter.value.bytes().begin(), parameter.value.bytes().end());
    }
    return codes;
  };
  EXPECT_EQ(codes_after(false, 1), codes_after(false, 2));
  EXPECT_EQ(codes_after(true, 1), codes_after(true, 1));
  EXPECT_NE(codes_after(true, 1), codes_after(true, 2));
  EXPECT_NE(codes_after(true, 1), codes_after(false, 1));
}

TEST_F(Int8QtModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  const auto model = Make();
  cancel_.Restart(0);
  const auto whole = Gradients(*model);
  const int calls = cancel_.calls();
  EXPECT_GT(calls, 2 * 7);  // one for each linear of the two layers, in the forward pass alone
  for (int at = 1; at <= calls; ++at) {
    cancel_.Restart(at);
    EXPECT_EQ(model->ForwardBackward(Batch(), 1.0, 0).status().code(), absl::StatusCode::kCancelled) << at;
  }
  cancel_.Restart(0);
  EXPECT_EQ(Gradients(*model), whole);
}

TEST_F(Int8QtModelTest, RefusesOtherBases) {
  for (const std::string& directory : {models_.nf4(), models_.int8()}) {
    const auto base = model::Artifact::Open(directory);
    ASSERT_TRUE(base.ok()) << base.status();
    EXPECT_TRUE(absl::IsInvalidArgument(MakeInt8QtModel(**base, {.max_positions = 32}, stream_).status()));
  }
}

}  // namespace
}  // namespace nibble::trainer
