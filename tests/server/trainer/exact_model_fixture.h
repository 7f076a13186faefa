// For tests of models that train in the arithmetic in which they are served: a small base, and the logits of training
// and of serving as digests.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "server/model/forward.h"
#include "server/model/record.h"
#include "server/trainer/exact_model.h"
#include "server/trainer/torch_runtime.h"
#include "tests/server/model/small_models.h"
#include "tests/server/trainer/finite_differences.h"
#include "tests/support/cancel_at.h"

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

  support::CancelAt asked_;
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
