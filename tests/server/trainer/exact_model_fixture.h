// For tests of models that train in the arithmetic in which they are served: a small base, and the logits of training
// and of serving as digests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/convert/convert.h"
#include "server/model/forward.h"
#include "server/model/record.h"
#include "server/trainer/exact_model.h"
#include "server/trainer/optimizer.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/bf16_parameters.h"
#include "tests/server/trainer/finite_differences.h"
#include "tests/support/cancel_at.h"
#include "tests/support/random.h"

namespace nibble::trainer {

class ExactModelTest : public testing::Test {
 protected:
  ExactModelTest() { stream_.library = library_.get(); }

  // Imports the golden model of the family in f32; returns its directory.
  std::string Import(const std::string& family) {
    const std::string source = models_.Path(family + "-source"), directory = models_.Path(family);
    std::filesystem::copy(model::Golden("families/" + family), source);
    std::filesystem::copy(model::Golden("families/tokenizer.json"), source);
    const auto imported = model::ImportModel(base::RealFileSystem(), source, directory, kernels::DType::kF32);
    EXPECT_TRUE(imported.ok()) << imported.status();
    return directory;
  }
  // The base of the models that the test makes; sets config_.
  std::unique_ptr<model::Artifact> Open(const std::string& directory) {
    auto base = model::Artifact::Open(directory);
    EXPECT_TRUE(base.ok()) << base.status();
    config_ = (*base)->config();
    return *std::move(base);
  }
  data::MicroBatch Batch() const { return TwoSegments(config_.vocab_size); }
  // Sets random values. An adapter has no effect at the start, because its B is 0.
  static void SetValues(TrainingModel& model) {
    std::uint64_t seed = 0;
    for (Parameter& parameter : model.parameters()) {
      const auto values = support::NormalVector(++seed, static_cast<std::int64_t>(parameter.value.f32().size()), 0.05f);
      std::copy(values.begin(), values.end(), parameter.value.f32().begin());
    }
    EXPECT_TRUE(model.Refresh().ok());
  }
  // The gradients of the batch's loss, by parameter.
  std::vector<std::vector<float>> Gradients(TrainingModel& model) {
    model.ZeroGrad();
    const auto loss = model.ForwardBackward(Batch(), 0.5, 0);
    EXPECT_TRUE(loss.ok()) << loss.status();
    std::vector<std::vector<float>> all;
    for (const Parameter& parameter : model.parameters()) {
      all.emplace_back(parameter.grad.f32().begin(), parameter.grad.f32().end());
    }
    return all;
  }
  // One step of SGD with the gradients of the batch.
  void Step(TrainingModel& model, std::int64_t step = 1, std::uint64_t seed = 0) {
    model.ZeroGrad();
    ASSERT_TRUE(model.ForwardBackward(Batch(), 0.5, 0).ok());
    jobs::OptimConfig config;
    config.optimizer = "sgd";
    const Optimizer optimizer(config);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const Parameter& parameter = model.parameters()[i];
      Moments moments = optimizer.MakeMoments(parameter.value.count);
      ASSERT_TRUE(
          optimizer
              .Step(step, 1e-2, parameter.value, parameter.grad, moments, stream_,
                    {.seed = seed, .tensor = i, .to_nearest = parameter.to_nearest, .one_scale = parameter.one_scale})
              .ok());
    }
    ASSERT_TRUE(model.Refresh().ok());
  }
  // Expects that the gradients of each parameter have about the same direction and length.
  static void ExpectAlike(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t p = 0; p < got.size(); ++p) {
      double dot = 0, of_got = 0, of_want = 0;
      for (std::size_t i = 0; i < got[p].size(); ++i) {
        const double x = got[p][i], y = want[p][i];
        dot += x * y, of_got += x * x, of_want += y * y;
      }
      EXPECT_GT(dot / std::sqrt(of_got * of_want), 0.9) << p;
      EXPECT_NEAR(std::sqrt(of_got / of_want), 1.0, 0.25) << p;
    }
  }
  // Writes a lora model: the base in `directory` with `adapter`, whose values are those of the trained model.
  std::unique_ptr<model::Artifact> WriteAdapter(TrainingModel& model, const std::string& directory,
                                                const model::AdapterConfig& adapter, const std::string& name) {
    const auto base = model::Artifact::Open(directory);
    std::vector<std::vector<float>> values;
    for (const model::TensorPlan& tensor : model::AdapterTensors((*base)->config(), adapter)) {
      const auto parameter = std::find_if(model.parameters().begin(), model.parameters().end(),
                                          [&](const Parameter& p) { return p.name == tensor.name; });
      EXPECT_NE(parameter, model.parameters().end()) << tensor.name;
      values.emplace_back(parameter->value.f32().begin(), parameter->value.f32().end());
    }
    const auto made = convert::MakeLoraModel(base::RealFileSystem(), **base, adapter, values, base::Json::object(),
                                             models_.Path(name));
    EXPECT_TRUE(made.ok()) << made.status();
    auto lora = model::Artifact::Open(models_.Path(name));
    EXPECT_TRUE(lora.ok()) << lora.status();
    return *std::move(lora);
  }

  // Digests of the logits of the batch's tokens, row by row.
  std::vector<std::string> Training(ExactModel& model) const {
    std::vector<std::string> digests;
    EXPECT_TRUE(model.ForEachTrainingLogits(Batch().tokens, Adder(digests)).ok());
    return digests;
  }
  std::vector<std::string> Serving(const model::DecoderWeights& weights) const {
    std::vector<std::string> digests;
    EXPECT_TRUE(model::ForEachLogits(config_, weights, Batch().tokens, 8, stream_, Adder(digests)).ok());
    return digests;
  }

  support::CancelAt cancel_;
  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> library_ = MakeTorchLibrary();
  kernels::Stream stream_ = models_.stream();
  model::ModelConfig config_;

 private:
  static VisitLogits Adder(std::vector<std::string>& digests) {
    return [&digests](std::int64_t, const kernels::Matrix& logits) {
      for (std::int64_t r = 0; r < logits.rows; ++r) {
        digests.push_back(model::RowDigest(logits.Row<float>(r), logits.cols));
      }
      return absl::OkStatus();
    };
  }
};

}  // namespace nibble::trainer
