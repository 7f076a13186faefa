// BitNet: trains all weights in the arithmetic of the ternary artifact that is served.
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/bitnet_shape.h"
#include "server/trainer/bitnet_model.h"
#include "server/trainer/recipe.h"
#include "server/trainer/training_record.h"

namespace nibble::trainer {
namespace {

kernels::Ste SteOf(const std::string& name) {
  if (name == "round_only") return kernels::Ste::kRoundOnly;
  return name == "clipped" ? kernels::Ste::kClipped : kernels::Ste::kIdentity;
}

class BitNetRecipe : public Recipe {
 public:
  explicit BitNetRecipe(const RecipeContext& context) : context_(context), spec_(context.order.spec) {}

  absl::Status Prepare() {
    const jobs::BitNetQatMethod& bitnet = spec_.bitnet_qat;
    text_directory_ = context_.order.base_model_directory;
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(text_directory_));
    base_digest_ = base->info().weights_digest;
    config_ = model::BitNetShape(base->config(), bitnet.preset);
    BitNetOptions options;
    options.act_bits = static_cast<int>(bitnet.act_bits);
    options.act_per_tensor = bitnet.act_scale == "per_tensor";
    options.ste = SteOf(bitnet.ste);
    options.scale_grad = bitnet.scale_grad;
    options.random_init = bitnet.init == "random";
    options.init_seed = static_cast<std::uint64_t>(spec_.run.seed);
    options.bf16_backward = bitnet.compute_dtype == "bf16";
    options.activation_checkpointing = spec_.run.activation_checkpointing;
    options.cancelled = context_.cancelled;
    options.max_positions = max_positions_ = std::min(spec_.data.max_seq_len, config_.context_limit());
    NIBBLE_ASSIGN_OR_RETURN(model_, BitNetModel::Create(*base, config_, options, context_.stream));
    if (options.act_per_tensor) {
      return context_.warn("PER_TENSOR_ACTIVATIONS",
                           "bitnet_qat.act_scale per_tensor: rows share a scale in training; the served model has one "
                           "per token, and evaluations show the effect; its record is made when it is converted");
    }
    return absl::OkStatus();
  }

  TrainingModel& model() override { return *model_; }
  const model::ModelConfig& config() const override { return config_; }
  std::int64_t max_positions() const override { return max_positions_; }
  const std::string& text_directory() const override { return text_directory_; }
  const std::string& base_digest() const override { return base_digest_; }

  absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) override {
    return model_->Write(context_.files, text_directory_, provenance, directory);
  }

  model::Format served_format() const override { return model::Format::kTernary; }

  // Rows that share a scale in training have other logits than served rows, which each have their own scale.
  bool predicts_record() const override { return spec_.bitnet_qat.act_scale != "per_tensor"; }

  // The logits of the training instantiation, with autograd on: nibbled must give these bits (docs/numerics.md 10).
  absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                           const std::vector<std::vector<std::int32_t>>& sequences) override {
    return MakeTrainingRecord(served, context_.stream.device, sequences, [this](const auto& tokens, const auto& visit) {
      return model_->ForEachTrainingLogits(tokens, visit);
    });
  }

  void Release() override {
    model_->ReleaseGradients();
    base::ReturnFreeMemory();  // small pieces that training has freed
  }

 private:
  const RecipeContext context_;
  const jobs::JobSpec& spec_;
  std::string text_directory_;
  std::string base_digest_;
  model::ModelConfig config_;
  std::int64_t max_positions_ = 0;
  std::unique_ptr<BitNetModel> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeBitNetRecipe(const RecipeContext& context) {
  auto recipe = std::make_unique<BitNetRecipe>(context);
  NIBBLE_RETURN_IF_ERROR(recipe->Prepare());
  return std::unique_ptr<Recipe>(std::move(recipe));
}

}  // namespace nibble::trainer
