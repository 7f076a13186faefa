// Int8 mixed precision: trains all weights as f32 parameters whose linears multiply in int8. The result is an f32
// model, served as int8. With an exact forward pass, training computes what the int8 model serves.
#include <algorithm>
#include <span>
#include <vector>

#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/convert/convert.h"
#include "server/jobs/int8_mixed_method.h"
#include "server/model/replay.h"
#include "server/trainer/full_model.h"
#include "server/trainer/int8_mixed_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/training_record.h"

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

class Int8MixedRecipe : public Recipe {
 public:
  explicit Int8MixedRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  absl::Status Prepare() {
    const jobs::Int8MixedMethod method = jobs::WithPreset(spec_.int8_mixed);
    text_directory_ = context_.order.base_model_directory;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
    base_digest_ = base->info().weights_digest;
    form_ = {.kv_dtype = base->info().kv_dtype, .trained_outliers = jobs::TrainedOutliers(method)};
    config_ = base->config();
    max_positions_ = std::min(spec_.data.max_seq_len, config_.context_limit());
    const Int8Products products = ProductsOf(method, spec_.run.seed);
    const bool bf16 = method.compute_dtype == "bf16";
    const bool random = method.init == "random";
    const auto seed = static_cast<std::uint64_t>(spec_.run.seed);
    if (*method.exact_forward) {
      NIBBLE_ASSIGN_OR_RETURN(exact_,
                              Int8MixedModel::Create(*base,
                                                     {.products = products.how,
                                                      .bf16_compute = bf16,
                                                      .activation_checkpointing = spec_.run.activation_checkpointing,
                                                      .random_init = random,
                                                      .init_seed = seed,
                                                      .max_positions = max_positions_,
                                                      .cancelled = context_.cancelled},
                                                     context_.stream));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(float_, FullModel::Create(*base,
                                                        {.bf16_compute = bf16,
                                                         .int8 = products,
                                                         .activation_checkpointing = spec_.run.activation_checkpointing,
                                                         .random_init = random,
                                                         .init_seed = seed,
                                                         .max_positions = max_positions_,
                                                         .cancelled = context_.cancelled},
                                                        context_.stream));
    }
    return absl::OkStatus();
  }

  TrainingModel& model() override {
    if (exact_ != nullptr) return *exact_;
    return *float_;
  }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return text_directory_; }
  const std::string& base_digest() const override { return base_digest_; }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    std::vector<std::span<const std::byte>> values;
    if (exact_ != nullptr) {
      values = exact_->Values();
    } else {
      for (const Parameter& parameter : float_->parameters()) values.push_back(parameter.value.bytes());
    }
    return convert::MakeTrainedModel(context_.files, config_, form_, values, text_directory_, provenance, directory,
                                     "job", context_.cancelled);
  }

  model::Format served_format() const override { return model::Format::kInt8; }

  // With an exact forward pass, the logits of the training instantiation, with autograd on: nibbled must give these
  // bits. Otherwise int8 is another model, so the serving instantiation makes the record.
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    if (exact_ == nullptr) return model::MakeRecord(served, sequences, context_.stream, context_.cancelled);
    return MakeTrainingRecord(served, context_.stream.device, sequences, [this](const auto& tokens, const auto& visit) {
      return exact_->ForEachTrainingLogits(tokens, visit);
    });
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
  const RecipeContext context_;
  const jobs::JobSpec& spec_;
  std::string text_directory_;
  std::string base_digest_;
  convert::TrainedForm form_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  // One of the two is set.
  std::unique_ptr<Int8MixedModel> exact_;
  std::unique_ptr<FullModel> float_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeInt8MixedRecipe(const RecipeContext& context) {
  auto recipe = std::make_unique<Int8MixedRecipe>(context);
  NIBBLE_RETURN_IF_ERROR(recipe->Prepare());
  return std::unique_ptr<Recipe>(std::move(recipe));
}

}  // namespace nibble::trainer
