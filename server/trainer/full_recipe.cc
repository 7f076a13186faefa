// Full fine-tuning: trains all weights in float. The result is an f32 or bf16 model, served as it is or as int8.
#include <algorithm>
#include <span>
#include <vector>

#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/convert/convert.h"
#include "server/model/replay.h"
#include "server/trainer/full_model.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {
namespace {

class FullRecipe : public Recipe {
 public:
  explicit FullRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  absl::Status Prepare() {
    text_directory_ = context_.order.base_model_directory;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
    base_digest_ = base->info().weights_digest;
    kv_dtype_ = base->info().kv_dtype;
    config_ = base->config();
    max_positions_ = std::min(spec_.data.max_seq_len, config_.context_limit());
    bf16_parameters_ = spec_.full.param_dtype == "bf16";
    NIBBLE_ASSIGN_OR_RETURN(model_, FullModel::Create(*base,
                                                      {.bf16_compute = spec_.full.compute_dtype == "bf16",
                                                       .bf16_parameters = bf16_parameters_,
                                                       .activation_checkpointing = spec_.run.activation_checkpointing,
                                                       .random_init = spec_.full.init == "random",
                                                       .init_seed = static_cast<std::uint64_t>(spec_.run.seed),
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

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    std::vector<std::span<const std::byte>> values;
    for (const Parameter& parameter : model_->parameters()) values.push_back(parameter.value.bytes());
    return convert::MakeTrainedModel(
        context_.files, config_,
        {.kv_dtype = kv_dtype_, .dtype = bf16_parameters_ ? kernels::DType::kBF16 : kernels::DType::kF32}, values,
        text_directory_, provenance, directory, "job", context_.cancelled);
  }

  model::Format served_format() const override { return model::Format::kInt8; }
  // int8 is another model than the trained floats, so the serving instantiation makes the record.
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
  }

  void Release() override {
    model_->Release();
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

 private:
  const RecipeContext context_;
  const jobs::JobSpec& spec_;
  std::string text_directory_;
  std::string base_digest_;
  kernels::DType kv_dtype_ = kernels::DType::kF32;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  bool bf16_parameters_ = false;
  std::unique_ptr<FullModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeFullRecipe(const RecipeContext& context) {
  auto recipe = std::make_unique<FullRecipe>(context);
  NIBBLE_RETURN_IF_ERROR(recipe->Prepare());
  return std::unique_ptr<Recipe>(std::move(recipe));
}

}  // namespace nibble::trainer
