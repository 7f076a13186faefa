#include "server/trainer/adapter_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "server/convert/convert.h"
#include "server/model/trainer_logprobs.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/finite_differences.h"
#include "tests/support/cancel_at.h"
#include "tests/support/random.h"

namespace nibble::trainer {
namespace {

// A base, and the bounds of the logprob difference between training and serving on it, by compute type.
struct Base {
  const char* name;
  double f32_bound;
  double bf16_bound;
};

class AdapterModelTest : public testing::TestWithParam<Base> {
 protected:
  void SetUp() override { stream_.library = library_.get(); }

  std::string BasePath() {
    const std::string name = GetParam().name;
    return name == "nf4" ? models_.nf4() : name == "bf16" ? models_.bf16() : models_.f32();
  }
  std::unique_ptr<AdapterModel> Make(bool bf16, double dropout, bool checkpointing = false) {
    AdapterOptions options;
    options.activation_checkpointing = checkpointing;
    options.cancelled = cancel_.callback();
    options.adapter = Adapter(dropout);
    options.bf16_compute = bf16;
    options.dropout_seed = 3;
    base_ = models_.Load(BasePath());
    auto model = AdapterModel::Create(base_, options, stream_);
    EXPECT_TRUE(model.ok()) << model.status();
    // Sets B too, because an adapter that is 0 has no effect.
    std::uint64_t seed = 0;
    for (Parameter& parameter : (*model)->parameters()) {
      auto values = support::NormalVector(++seed, static_cast<std::int64_t>(parameter.value.f32().size()), 0.05f);
      if (parameter.shape.size() == 1) {  // DoRA's magnitudes stay near the norms that they start with
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = parameter.value.f32()[i] * (1 + values[i]);
      }
      std::copy(values.begin(), values.end(), parameter.value.f32().begin());
    }
    EXPECT_TRUE((*model)->Refresh().ok());
    return *std::move(model);
  }
  model::AdapterConfig Adapter(double dropout) const {
    model::AdapterConfig adapter;
    adapter.dora = dora_;
    adapter.rank = 4;
    adapter.alpha = 8;
    adapter.dropout = dropout;
    adapter.targets = {model::LinearKind::kQ, model::LinearKind::kV, model::LinearKind::kDown};
    return adapter;
  }
  std::vector<float> Logprobs(AdapterModel& model) {
    auto logprobs = model.TrainingLogprobs(tokens_);
    EXPECT_TRUE(logprobs.ok()) << logprobs.status();
    return logprobs.value_or(std::vector<float>());
  }
  // Two examples in one row, and one alone in its row.
  data::MicroBatch Batch() const {
    data::MicroBatch batch;
    for (const std::size_t size : {19u, 7u, 12u}) {
      batch.tokens.insert(batch.tokens.end(), tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(size));
      batch.targets.insert(batch.targets.end(), tokens_.begin() + 1,
                           tokens_.begin() + static_cast<std::ptrdiff_t>(size));
      batch.targets.push_back(-1);
    }
    batch.segments = {0, 19, 26, 38};
    batch.rows = {0, 26, 38};
    batch.num_trained = 35;
    return batch;
  }
  static std::vector<std::vector<float>> Gradients(AdapterModel& model) {
    std::vector<std::vector<float>> all;
    for (const Parameter& parameter : model.parameters())
      all.emplace_back(parameter.grad.f32().begin(), parameter.grad.f32().end());
    return all;
  }
  // Largest logprob difference between training and the same adapter as an artifact that nibbled serves.
  double ServedDifference(AdapterModel& trained, const std::string& name) {
    std::vector<std::vector<float>> values;
    for (const Parameter& parameter : trained.parameters())
      values.emplace_back(parameter.value.f32().begin(), parameter.value.f32().end());
    const auto base = model::Artifact::Open(BasePath());
    EXPECT_TRUE(convert::MakeLoraModel(base::RealFileSystem(), **base, Adapter(0), values, base::Json::object(),
                                       models_.Path(name))
                    .ok());
    const auto difference =
        model::MaxLogprobDifference(*models_.Load(models_.Path(name)), {{{tokens_, Logprobs(trained)}}}, stream_);
    EXPECT_TRUE(difference.ok()) << difference.status();
    return difference.value_or(-1);
  }

  bool dora_ = false;
  support::CancelAt cancel_;
  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
  std::shared_ptr<const model::LoadedModel> base_;
  std::vector<std::int32_t> tokens_ = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 9, 3, 23, 84, 62, 64};
};

// docs/numerics.md 10. Serving rounds the rows of linears to bf16, except on an f32 base. Training with fp32 compute
// never rounds them; training with bf16 compute always does, and also rounds an f32 base. With bf16 compute on an nf4
// base, only the head's product differs. On a bf16 base, the sums of a linear may depend on the number of rows in the
// product.
TEST_P(AdapterModelTest, TrainingLogprobsMatchThoseOfServing) {
  const double f32 = ServedDifference(*Make(/*bf16=*/false, 0), "lora_f32"),
               bf16 = ServedDifference(*Make(/*bf16=*/true, 0), "lora_bf16");
  RecordProperty("f32", std::to_string(f32));
  RecordProperty("bf16", std::to_string(bf16));
  EXPECT_LT(f32, GetParam().f32_bound);
  EXPECT_LT(bf16, GetParam().bf16_bound);
  const auto changed = Make(/*bf16=*/false, 0);
  const std::vector<float> before = Logprobs(*changed);
  for (Parameter& parameter : changed->parameters()) parameter.value.f32()[0] += 1.0f;
  EXPECT_NE(Logprobs(*changed), before) << "the logprobs depend on the adapter";
}

TEST_P(AdapterModelTest, DoraStartsAsTheBaseAndIsServedAsTrained) {
  AdapterOptions options;
  options.adapter = Adapter(0);
  const auto plain = AdapterModel::Create(models_.Load(BasePath()), options, stream_);
  dora_ = true;
  options.adapter = Adapter(0);
  const auto dora = AdapterModel::Create(models_.Load(BasePath()), options, stream_);
  ASSERT_TRUE(plain.ok() && dora.ok()) << dora.status();
  EXPECT_EQ(Logprobs(**dora), Logprobs(**plain)) << "every factor is 1";
  EXPECT_EQ((*dora)->parameters().size(), (*plain)->parameters().size() / 2 * 3) << "A, B, magnitude";
  EXPECT_LT(ServedDifference(*Make(/*bf16=*/false, 0), "dora_f32"), GetParam().f32_bound);
  EXPECT_LT(ServedDifference(*Make(/*bf16=*/true, 0), "dora_bf16"), GetParam().bf16_bound);
}

TEST_P(AdapterModelTest, LogprobsEqualTheLossesOfTraining) {
  const auto model = Make(/*bf16=*/false, 0);
  data::MicroBatch batch;
  batch.tokens = tokens_;
  batch.targets.assign(tokens_.begin() + 1, tokens_.end());
  batch.targets.push_back(-1);
  batch.segments = batch.rows = {0, static_cast<std::int64_t>(tokens_.size())};
  const auto loss = model->ForwardBackward(batch, 1.0, 0);
  ASSERT_TRUE(loss.ok()) << loss.status();
  const std::vector<float> logprobs = Logprobs(*model);
  ASSERT_EQ(logprobs.size() + 1, tokens_.size());
  EXPECT_EQ(*loss, -std::accumulate(logprobs.begin(), logprobs.end(), 0.0));
}

TEST_P(AdapterModelTest, CallsCancelledBeforeEveryLinear) {
  const auto calls = [&](bool checkpointing) {
    const auto model = Make(/*bf16=*/true, 0, checkpointing);
    cancel_.Restart(0);
    EXPECT_TRUE(model->ForwardBackward(Batch(), 1.0, 0).ok());
    return cancel_.calls();
  };
  const int plain = calls(false);
  const int linears = static_cast<int>(models_.Load(BasePath())->config().num_layers) * model::kNumLinearKinds;
  // k_proj of the first layer has no adapter and an input without a gradient: it takes no part in the backward pass.
  EXPECT_GE(plain, 2 * linears - 1);
  EXPECT_GE(calls(true) - plain, linears);
}

TEST_P(AdapterModelTest, PassStoppedAnywhereLeavesNothingBehind) {
  for (const bool checkpointing : {false, true}) {
    const auto model = Make(/*bf16=*/true, /*dropout=*/0.2, checkpointing);
    cancel_.Restart(0);
    const auto loss = model->ForwardBackward(Batch(), 1.0, 5);
    ASSERT_TRUE(loss.ok()) << loss.status();
    const auto gradients = Gradients(*model);
    const int calls = cancel_.calls();
    for (int at = 1; at <= calls; ++at) {
      cancel_.Restart(at);
      EXPECT_EQ(model->ForwardBackward(Batch(), 1.0, 5).status().code(), absl::StatusCode::kCancelled) << at;
      EXPECT_EQ(cancel_.calls(), at) << "nothing runs after the cancellation";
    }
    cancel_.Restart(0);
    model->ZeroGrad();
    const auto again = model->ForwardBackward(Batch(), 1.0, 5);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *loss);
    EXPECT_EQ(Gradients(*model), gradients);
  }
}

// docs/faults.md, T3.
TEST_P(AdapterModelTest, ReleaseFreesTheBaseAndKeepsTheValues) {
  const auto model = Make(/*bf16=*/true, 0);
  ASSERT_TRUE(model->ForwardBackward(Batch(), 1.0, 0).ok());
  std::vector<std::vector<float>> values;
  for (const Parameter& parameter : model->parameters())
    values.emplace_back(parameter.value.f32().begin(), parameter.value.f32().end());
  const std::weak_ptr<const model::LoadedModel> base = base_;
  model->Release();
  base_.reset();
  EXPECT_TRUE(base.expired());
  ASSERT_EQ(model->parameters().size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Parameter& parameter = model->parameters()[i];
    EXPECT_EQ(std::vector<float>(parameter.value.f32().begin(), parameter.value.f32().end()), values[i])
        << parameter.name;
    EXPECT_TRUE(parameter.grad.f32().empty());
  }
}

TEST_P(AdapterModelTest, CreateCanBeCancelled) {
  AdapterOptions options;
  options.adapter = Adapter(0);
  options.cancelled = cancel_.callback();
  cancel_.Restart(2);
  EXPECT_EQ(AdapterModel::Create(models_.Load(BasePath()), options, stream_).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(AdapterModelTest, LogprobsHaveNoDropout) {
  EXPECT_EQ(Logprobs(*Make(/*bf16=*/false, /*dropout=*/0.5)), Logprobs(*Make(/*bf16=*/false, /*dropout=*/0)));
}

TEST_P(AdapterModelTest, RecomputedLayersChangeNoGradient) {
  std::vector<std::vector<std::vector<float>>> gradients;
  for (const bool checkpointing : {false, true}) {
    const auto model = Make(/*bf16=*/true, /*dropout=*/0.2, checkpointing);
    ASSERT_TRUE(model->ForwardBackward(Batch(), 1.0, 5).ok());
    gradients.push_back(Gradients(*model));
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

INSTANTIATE_TEST_SUITE_P(Bases, AdapterModelTest,
                         testing::Values(Base{"nf4", 1e-3, 1e-5}, Base{"bf16", 1e-3, 1e-3}, Base{"f32", 1e-4, 1e-2}),
                         [](const auto& info) { return std::string(info.param.name); });

// Checks adapters on all linears of `base`. Their values are random: not 0, so that A and B both have gradients, and
// small enough for finite differences.
void ExpectAdapterGradients(const std::string& base, const kernels::Stream& stream) {
  auto loaded = model::LoadedModel::Load(base, {.max_positions = 32}, stream);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  AdapterOptions options;
  options.adapter.rank = 4;
  options.adapter.alpha = 8;
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    options.adapter.targets.push_back(static_cast<model::LinearKind>(k));
  }
  options.bf16_compute = false;
  const std::int64_t vocab_size = (*loaded)->config().vocab_size;
  auto model = AdapterModel::Create(*std::move(loaded), options, stream);
  ASSERT_TRUE(model.ok()) << model.status();
  std::uint64_t seed = 0;
  for (Parameter& parameter : (*model)->parameters()) {
    const auto values = support::NormalVector(++seed, static_cast<std::int64_t>(parameter.value.f32().size()), 0.05f);
    std::copy(values.begin(), values.end(), parameter.value.f32().begin());
  }
  ExpectFiniteDifferences(**model, TwoSegments(vocab_size));
}

// Together the families have an untied head, biases, norms of the heads of q and k, and norms before o_proj and
// down_proj.
TEST(AdapterGradientsTest, GradientsOnFloatBasesOfFiveFamiliesMatchFiniteDifferences) {
  model::SmallModels models;
  const std::unique_ptr<kernels::DenseLibrary> library = MakeTorchLibrary();
  kernels::Stream stream = models.stream();
  stream.library = library.get();
  for (const std::string family : {"llama3", "qwen2", "qwen3", "phi3", "bitnet"}) {
    const std::string source = models.Path(family + "-source");
    std::filesystem::copy(model::Golden("families/" + family), source);
    std::filesystem::copy(model::Golden("families/tokenizer.json"), source);
    for (const kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16}) {
      SCOPED_TRACE(family + "-" + kernels::Name(dtype));
      const std::string base = models.Path(family + "-" + kernels::Name(dtype));
      const auto imported = model::ImportModel(base::RealFileSystem(), source, base, dtype);
      ASSERT_TRUE(imported.ok()) << imported.status();
      ExpectAdapterGradients(base, stream);
    }
  }
}

TEST(AdapterModelBaseTest, RefusesInt8Base) {
  model::SmallModels models;
  const auto refused = AdapterModel::Create(models.Load(models.int8()), {}, models.stream());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("int8"), absl::string_view::npos) << refused.status();
}

}  // namespace
}  // namespace nibble::trainer
