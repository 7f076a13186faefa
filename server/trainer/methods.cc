// The training methods of nibble-trainer. nibbled has a table with the same names (plan/method_plan.cc).
#include "server/base/strings.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {
namespace {

const RecipeRow kRecipes[] = {
    {jobs::kMethodQLora, MakeQLoraRecipe},   {jobs::kMethodBitNetQat, MakeBitNetRecipe},
    {jobs::kMethodFull, MakeFullRecipe},     {jobs::kMethodInt8Mixed, MakeInt8MixedRecipe},
    {jobs::kMethodInt8Qt, MakeInt8QtRecipe}, {jobs::kMethodLora, MakeLoraRecipe},
};

}  // namespace

std::span<const RecipeRow> BuiltInRecipes() { return kRecipes; }

absl::StatusOr<std::unique_ptr<Recipe>> MakeRecipe(const RecipeContext& context, std::span<const RecipeRow> rows) {
  const std::string& method = context.order.spec.method;
  for (const RecipeRow& row : rows) {
    if (method == row.method) return row.make(context);
  }
  return absl::UnimplementedError(base::StrCat("method: this trainer does not support ", method));
}

}  // namespace nibble::trainer
