// The common part of the recipes that train all weights of a base.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/convert/convert.h"
#include "server/model/artifact.h"
#include "server/model/replay.h"
#include "server/trainer/exact_model.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {

inline std::vector<convert::TrainedTensor> TrainedTensors(const std::vector<TensorRef>& values) {
  std::vector<convert::TrainedTensor> tensors;
  for (const TensorRef& value : values) {
    tensors.push_back({value.bytes(), {value.scales, static_cast<std::size_t>(value.num_scales())}});
  }
  return tensors;
}

class WeightsRecipe : public Recipe {
 public:
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return context_.order.base_model_directory; }
  const std::string& base_digest() const override { return base_digest_; }

  model::Format served_format() const override { return model::Format::kInt8; }

 protected:
  explicit WeightsRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  // Opens the base, and sets the config of the trained model to the base's.
  absl::StatusOr<std::unique_ptr<model::Artifact>> OpenBase() {
    NIBBLE_ASSIGN_OR_RETURN(auto base, model::Artifact::Open(text_directory()));
    base_digest_ = base->info().weights_digest;
    SetConfig(base->config());
    return base;
  }
  void SetConfig(const model::ModelConfig& config) {
    config_ = config;
    max_positions_ = std::min(spec_.data.max_seq_len, config_.context_limit());
  }

  // values: of the tensors of RequiredTensors(config()), in that order.
  absl::StatusOr<model::ArtifactInfo> WriteTrained(const std::vector<TensorRef>& values,
                                                   const convert::TrainedForm& form, const base::Json& provenance,
                                                   const std::string& directory) const {
    return convert::MakeTrainedModel(context_.files, config_, form, TrainedTensors(values), text_directory(),
                                     provenance, directory, "job", context_.cancelled);
  }

  // The record by the serving instantiation, for a served form that is another model than the trained one.
  absl::StatusOr<model::Record> RecordOfServing(const model::LoadedModel& served,
                                                const std::vector<std::vector<std::int32_t>>& sequences) const {
    return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
  }

  const RecipeContext context_;
  const jobs::JobSpec& spec_;

 private:
  std::string base_digest_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
};

// The recipe of a method whose model always trains in the arithmetic in which it is served.
class ExactRecipe : public WeightsRecipe {
 public:
  TrainingModel& model() override { return *model_; }
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return RecordOfTraining(*model_, served, context_.stream.device, sequences);
  }
  void Release() override {
    model_->ReleaseGradients();
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

 protected:
  using WeightsRecipe::WeightsRecipe;

  std::unique_ptr<ExactModel> model_;  // set by Prepare
};

}  // namespace nibble::trainer
