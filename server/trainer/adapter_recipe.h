// The common part of the recipes that train adapters on a frozen base (qlora, lora). A base in nf4, bf16 or f32 is
// multiplied in floats; an int8 base and its adapter in the arithmetic in which nibbled serves both. With
// merge_aware_int8, training computes with the adapter merged into int8 weights. Included by recipes' .cc only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/job_spec.h"
#include "server/trainer/adapter_model.h"
#include "server/trainer/exact_model.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {

// The result is the adapter on its base; it is served like that if the base is int8, else merged as int8.
class AdapterRecipe : public Recipe {
 public:
  TrainingModel& model() override {
    if (exact_ != nullptr) return *exact_;
    return *model_;
  }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return text_directory_; }
  const std::string& base_digest() const override { return base_digest_; }
  const model::AdapterConfig* adapter() const override { return &adapter_; }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override;
  model::Format served_format() const override { return base_is_int8_ ? model::Format::kLora : model::Format::kInt8; }
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override;
  absl::Status WriteLogprobs(const std::vector<std::vector<std::int32_t>>& sequences,
                             const std::string& directory) override;
  void Release() override;

 protected:
  explicit AdapterRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  // Loads the base in `directory`, which is `source` or its nf4 form, and makes the model with the options of `method`.
  // merge_aware: as in QLoraMethod::merge_aware_int8.
  absl::Status LoadBase(const model::Artifact& source, const std::string& directory, const jobs::LoraMethod& method,
                        bool merge_aware = false);

  const RecipeContext context_;
  const jobs::JobSpec& spec_;

 private:
  std::shared_ptr<const model::LoadedModel> base_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  std::string text_directory_;
  std::string base_digest_;
  bool base_is_int8_ = false;
  model::AdapterConfig adapter_;
  // LoadBase sets one of the two: exact_ if training computes what is served, else model_.
  std::unique_ptr<AdapterModel> model_;
  std::unique_ptr<ExactModel> exact_;
};

}  // namespace nibble::trainer
