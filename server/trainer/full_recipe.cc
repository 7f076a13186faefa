// Full fine-tuning: trains all weights in float. The result is an f32 or bf16 model, served as it is or as int8.
#include <vector>

#include "server/trainer/full_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/weights_recipe.h"

namespace nibble::trainer {
namespace {

class FullRecipe : public WeightsRecipe {
 public:
  explicit FullRecipe(const RecipeContext& context) : WeightsRecipe(context) {}

  absl::Status Prepare() {
    NIBBLE_ASSIGN_OR_RETURN(const auto base, OpenBase());
    form_ = {.kv_dtype = base->info().kv_dtype, .dtype = convert::FloatType(spec_.full.param_dtype)};
    NIBBLE_ASSIGN_OR_RETURN(model_, FullModel::Create(*base,
                                                      {.bf16_compute = spec_.full.compute_dtype == "bf16",
                                                       .bf16_parameters = form_.dtype == kernels::DType::kBF16,
                                                       .activation_checkpointing = spec_.run.activation_checkpointing,
                                                       .random_init = spec_.full.init == "random",
                                                       .init_seed = static_cast<std::uint64_t>(spec_.run.seed),
                                                       .max_positions = max_positions(),
                                                       .cancelled = context_.cancelled},
                                                      context_.stream));
    return absl::OkStatus();
  }

  TrainingModel& model() override { return *model_; }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    return WriteTrained(model_->Values(), form_, provenance, directory);
  }

  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return RecordOfServing(served, sequences);
  }

  void Release() override {
    model_->Release();
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

 private:
  convert::TrainedForm form_;
  std::unique_ptr<FullModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeFullRecipe(const RecipeContext& context) {
  return MakePrepared<FullRecipe>(context);
}

}  // namespace nibble::trainer
