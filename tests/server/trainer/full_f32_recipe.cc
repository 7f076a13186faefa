#include <algorithm>
#include <vector>

#include "server/base/status_macros.h"
#include "server/model/replay.h"
#include "tests/server/trainer/full_f32_method.h"
#include "tests/server/trainer/full_f32_model.h"

namespace nibble::trainer {
namespace {

class FullF32Recipe : public Recipe {
 public:
  explicit FullF32Recipe(const RecipeContext& context) : context_(context) {}

  absl::Status Prepare() {
    const jobs::JobSpec& spec = context_.order.spec;
    text_directory_ = context_.order.base_model_directory;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
    base_digest_ = base->info().weights_digest;
    config_ = base->config();
    max_positions_ = std::min(spec.data.max_seq_len, config_.context_limit());
    NIBBLE_ASSIGN_OR_RETURN(model_, MakeFullF32Model(config_,
                                                     {.init_seed = static_cast<std::uint64_t>(spec.run.seed),
                                                      .max_positions = max_positions_,
                                                      .cancelled = context_.cancelled},
                                                     context_.stream));
    return absl::OkStatus();
  }

  TrainingModel& model() override { return *model_; }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return text_directory_; }
  const std::string& base_digest() const override { return base_digest_; }

  // The model makes its parameters in the order of RequiredTensors.
  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    std::vector<std::span<const float>> values;
    for (const Parameter& parameter : model_->parameters()) values.push_back(parameter.value.f32());
    return WriteF32Model(context_.files, config_, values, text_directory_, provenance, directory, "job");
  }

  model::Format served_format() const override { return model::Format::kInt8; }
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
  }

 private:
  const RecipeContext context_;
  std::string text_directory_;
  std::string base_digest_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  std::unique_ptr<TrainingModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeFullF32Recipe(const RecipeContext& context) {
  auto recipe = std::make_unique<FullF32Recipe>(context);
  NIBBLE_RETURN_IF_ERROR(recipe->Prepare());
  return std::unique_ptr<Recipe>(std::move(recipe));
}

}  // namespace nibble::trainer
