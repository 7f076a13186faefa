// Int8 mixed precision: trains all weights as f32 or bf16 masters; linears multiply in int8. The result is a model
// of that type, served as int8. With an exact forward pass, training computes what the int8 model serves.
#include <algorithm>
#include <vector>

#include "server/jobs/int8_mixed_method.h"
#include "server/trainer/full_model.h"
#include "server/trainer/int8_mixed_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/weights_recipe.h"

namespace nibble::trainer {
namespace {

// `method`: with all fields set.
Int8Products ProductsOf(const jobs::Int8MixedMethod& method, std::int64_t seed) {
  Int8Products products;
  Int8LinearOptions& how = products.how;
  how.forward = *method.forward;
  how.grad_input = *method.grad_input;
  how.grad_weight = *method.grad_weight;
  how.rows.max_outliers = static_cast<int>(*method.act_outliers);
  how.rows.activations.per_tensor = method.act_scale == "per_tensor";
  how.weight_per_tensor = *method.weight_scale == "tensor";
  how.grad_per_tensor = method.grad_scale == "per_tensor";
  how.stochastic_forward = method.stochastic_forward;
  how.stochastic_gradients = method.stochastic_gradients;
  how.seed = static_cast<std::uint64_t>(seed);
  for (std::size_t k = 0; k < products.targets.size(); ++k) {
    const auto& names = method.target_modules;
    const auto kind = static_cast<model::LinearKind>(k);
    products.targets[k] = std::find(names.begin(), names.end(), model::ShortName(kind)) != names.end();
  }
  return products;
}

class Int8MixedRecipe : public WeightsRecipe {
 public:
  explicit Int8MixedRecipe(const RecipeContext& context) : WeightsRecipe(context) {}

  absl::Status Prepare() {
    const jobs::Int8MixedMethod method = jobs::WithPreset(spec_.int8_mixed);
    NIBBLE_ASSIGN_OR_RETURN(const auto base, OpenBase());
    form_ = {.kv_dtype = base->info().kv_dtype,
             .trained_outliers = jobs::TrainedOutliers(method),
             .dtype = convert::FloatType(method.master_dtype)};
    const Int8Products products = ProductsOf(method, spec_.run.seed);
    const bool bf16 = method.compute_dtype == "bf16";
    const bool bf16_masters = form_.dtype == kernels::DType::kBF16;
    const bool random = method.init == "random";
    const auto seed = static_cast<std::uint64_t>(spec_.run.seed);
    if (*method.exact_forward) {
      NIBBLE_ASSIGN_OR_RETURN(exact_,
                              MakeInt8MixedModel(*base,
                                                 {.products = products.how,
                                                  .bf16_compute = bf16,
                                                  .bf16_masters = bf16_masters,
                                                  .activation_checkpointing = spec_.run.activation_checkpointing,
                                                  .random_init = random,
                                                  .init_seed = seed,
                                                  .max_positions = max_positions(),
                                                  .cancelled = context_.cancelled},
                                                 context_.stream));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(float_, FullModel::Create(*base,
                                                        {.bf16_compute = bf16,
                                                         .bf16_parameters = bf16_masters,
                                                         .int8 = products,
                                                         .activation_checkpointing = spec_.run.activation_checkpointing,
                                                         .random_init = random,
                                                         .init_seed = seed,
                                                         .max_positions = max_positions(),
                                                         .cancelled = context_.cancelled},
                                                        context_.stream));
    }
    return absl::OkStatus();
  }

  TrainingModel& model() override {
    if (exact_ != nullptr) return *exact_;
    return *float_;
  }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    return WriteTrained(exact_ != nullptr ? exact_->Values() : float_->Values(), form_, provenance, directory);
  }

  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return exact_ != nullptr ? RecordOfTraining(*exact_, served, context_.stream.device, sequences)
                             : RecordOfServing(served, sequences);
  }

  void Release() override {
    if (exact_ != nullptr) {
      exact_->ReleaseGradients();
    } else {
      float_->Release();
    }
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

 private:
  convert::TrainedForm form_;
  // One of the two is set.
  std::unique_ptr<ExactModel> exact_;
  std::unique_ptr<FullModel> float_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeInt8MixedRecipe(const RecipeContext& context) {
  return MakePrepared<Int8MixedRecipe>(context);
}

}  // namespace nibble::trainer
