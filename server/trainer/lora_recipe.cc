// LoRA: an adapter on a base that stays in f32, bf16 or int8.
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/trainer/adapter_recipe.h"

namespace nibble::trainer {
namespace {

class LoraRecipe : public AdapterRecipe {
 public:
  explicit LoraRecipe(const RecipeContext& context) : AdapterRecipe(context) {}

  absl::Status Prepare() {
    NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(context_.order.base_model_directory));
    const model::Format format = base->info().format;
    if (format != model::Format::kF32 && format != model::Format::kBF16 && format != model::Format::kInt8) {
      return absl::InvalidArgumentError(
          base::StrCat("lora trains on a base in f32, bf16 or int8, got ", model::Name(format)));
    }
    return LoadBase(*base, base->directory(), spec_.lora);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Recipe>> MakeLoraRecipe(const RecipeContext& context) {
  return MakePrepared<LoraRecipe>(context);
}

}  // namespace nibble::trainer
