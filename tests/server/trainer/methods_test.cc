// nibbled and nibble-trainer have the same methods (docs/adr/0014).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/jobs/method.h"
#include "server/plan/method_plan.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {
namespace {

TEST(MethodsTest, EveryTableHasTheSameNames) {
  std::vector<std::string> specs, plans, recipes;
  for (const jobs::Method* method : jobs::Methods()) specs.push_back(method->name());
  for (const plan::MethodPlan* method : plan::MethodPlans()) plans.push_back(method->name());
  for (const RecipeRow& row : BuiltInRecipes()) recipes.push_back(row.method);
  EXPECT_EQ(specs, (std::vector<std::string>{"qlora", "bitnet_qat", "full", "int8_mixed", "int8_qt", "lora"}));
  EXPECT_EQ(plans, specs);
  EXPECT_EQ(recipes, specs);
}

TEST(MethodsTest, TrainerRefusesAMethodWithoutARow) {
  jobs::AttemptOrder order;
  order.spec.method = "aqt";
  const auto made = MakeRecipe({.order = order,
                                .directory = "",
                                .files = base::RealFileSystem(),
                                .stream = {},
                                .log = {},
                                .warn = {},
                                .cancelled = {}},
                               BuiltInRecipes());
  EXPECT_TRUE(absl::IsUnimplemented(made.status())) << made.status();
  EXPECT_EQ(made.status().message(), "method: this trainer does not support aqt");
}

}  // namespace
}  // namespace nibble::trainer
