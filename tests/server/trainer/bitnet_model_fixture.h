// For tests of BitNet models: a model on a golden base, its passes and steps, and its logits as digests.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/model/bitnet_shape.h"
#include "server/model/forward.h"
#include "server/model/import.h"
#include "server/model/record.h"
#include "server/trainer/adamw.h"
#include "server/trainer/bitnet_model.h"
#include "tests/server/model/files.h"
#include "tests/server/trainer/bf16_parameters.h"
#include "tests/support/random.h"

namespace nibble::trainer {

class BitNetModelTest : public ::testing::Test {
 protected:
  // Imports the model of a golden folder.
  std::unique_ptr<model::Artifact> Import(const std::string& golden) {
    const std::string source = directory_.Path("hf");
    std::filesystem::copy(model::Golden(golden), source);
    if (!std::filesystem::exists(source + "/tokenizer.json")) {
      std::filesystem::copy(model::Golden("families/tokenizer.json"), source + "/tokenizer.json");
    }
    const auto made = model::ImportModel(base::RealFileSystem(), source, directory_.Path("base"), kernels::DType::kF32);
    EXPECT_TRUE(made.ok()) << made.status();
    auto artifact = model::Artifact::Open(directory_.Path("base"));
    EXPECT_TRUE(artifact.ok()) << artifact.status();
    return *std::move(artifact);
  }

  void Make(const std::string& golden, const std::string& preset, BitNetOptions options = {}) {
    if (base_ == nullptr) base_ = Import(golden);
    config_ = model::BitNetShape(base_->config(), preset);
    options.max_positions = 64;
    options_ = options;
    auto made = MakeBitNetModel(*base_, config_, options_, stream_);
    ASSERT_TRUE(made.ok()) << made.status();
    model_ = *std::move(made);
  }

  static BitNetOptions OptionsOf(const model::BitNetInfo& info) {
    return {.act_bits = info.act_bits, .scaling = info.scaling, .float_linears = info.float_linears};
  }

  std::vector<std::int32_t> Tokens(std::uint64_t seed, std::int64_t n) const {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < n; ++i) {
      tokens.push_back(
          static_cast<std::int32_t>(support::UniformInt(seed, static_cast<std::uint64_t>(i), config_.vocab_size)));
    }
    return tokens;
  }

  // Examples as the loader lays them out, `per_row` examples per row.
  data::MicroBatch Batch(const std::vector<std::vector<std::int32_t>>& examples, std::size_t per_row = 1) const {
    data::MicroBatch batch;
    batch.segments = {0};
    batch.rows = {0};
    for (std::size_t e = 0; e < examples.size(); ++e) {
      for (std::size_t i = 0; i < examples[e].size(); ++i) {
        batch.tokens.push_back(examples[e][i]);
        batch.targets.push_back(i + 1 < examples[e].size() ? examples[e][i + 1] : -1);
        batch.num_trained += i + 1 < examples[e].size() ? 1 : 0;
      }
      batch.segments.push_back(static_cast<std::int64_t>(batch.tokens.size()));
      if ((e + 1) % per_row == 0 || e + 1 == examples.size()) batch.rows.push_back(batch.segments.back());
    }
    batch.num_rows = static_cast<std::int64_t>(batch.rows.size()) - 1;
    return batch;
  }

  double Loss(const data::MicroBatch& batch) {
    model_->ZeroGrad();
    const auto sum = model_->ForwardBackward(batch, 1.0 / static_cast<double>(batch.num_trained), 0);
    EXPECT_TRUE(sum.ok()) << sum.status();
    return sum.ok() ? *sum / static_cast<double>(batch.num_trained) : NAN;
  }

  struct PassResult {
    double loss = 0;
    std::map<std::string, std::vector<float>> gradients;
  };
  PassResult Pass(const data::MicroBatch& batch) {
    PassResult result;
    result.loss = Loss(batch);
    for (const Parameter& p : model_->parameters()) result.gradients[p.name] = Floats(p.grad);
    return result;
  }

  // The loss of each token that has a target. Runs one target at a time, because a batch returns only the sum.
  std::vector<double> TokenLosses(const data::MicroBatch& batch) {
    std::vector<double> losses;
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      if (batch.targets[i] < 0) continue;
      data::MicroBatch one = batch;
      std::fill(one.targets.begin(), one.targets.end(), -1);
      one.targets[i] = batch.targets[i];
      one.num_trained = 1;
      losses.push_back(Loss(one));
    }
    return losses;
  }

  double Step(const data::MicroBatch& batch, double lr) {
    const double loss = Loss(batch);
    auto& parameters = model_->parameters();
    if (moments_.empty()) {
      for (const Parameter& p : parameters)
        moments_.push_back(
            {TensorBuffer(ElementType::kF32, p.value.count), TensorBuffer(ElementType::kF32, p.value.count)});
    }
    ++step_;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const absl::Status done = AdamWStep({}, step_, lr, parameters[i].value, parameters[i].grad, moments_[i], stream_,
                                          {.seed = 1, .tensor = i});
      EXPECT_TRUE(done.ok()) << done;
    }
    EXPECT_TRUE(model_->Refresh().ok());
    return loss;
  }

  static std::vector<std::string> TrainingDigests(ExactModel& trained, const std::vector<std::int32_t>& tokens) {
    std::vector<std::string> digests;
    const absl::Status status = trained.ForEachTrainingLogits(tokens, [&](std::int64_t, const kernels::Matrix& logits) {
      for (std::int64_t r = 0; r < logits.rows; ++r)
        digests.push_back(model::RowDigest(logits.Row<float>(r), logits.cols));
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    return digests;
  }

  std::vector<std::string> ServingDigests(const std::vector<std::int32_t>& tokens, std::int64_t chunk,
                                          const kernels::Stream& stream) {
    std::vector<std::string> digests;
    const absl::Status status = model::ForEachLogits(
        config_, model_->ServingWeights(), tokens, chunk, stream, [&](std::int64_t, const kernels::Matrix& logits) {
          for (std::int64_t r = 0; r < logits.rows; ++r)
            digests.push_back(model::RowDigest(logits.Row<float>(r), logits.cols));
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return digests;
  }

  const Parameter& Named(const std::string& name) {
    for (const Parameter& parameter : model_->parameters()) {
      if (parameter.name == name) return parameter;
    }
    ADD_FAILURE() << "no parameter " << name;
    return model_->parameters().front();
  }
  std::vector<float> Values(const std::string& name) {
    const Parameter& parameter = Named(name);
    return {parameter.value.f32().begin(), parameter.value.f32().end()};
  }

  model::TempDirectory directory_;
  kernels::Stream stream_ = {.isa = kernels::DetectIsa()};
  std::unique_ptr<model::Artifact> base_;
  model::ModelConfig config_;
  BitNetOptions options_;
  std::unique_ptr<ExactModel> model_;
  std::vector<Moments> moments_;
  std::int64_t step_ = 0;
};

}  // namespace nibble::trainer
