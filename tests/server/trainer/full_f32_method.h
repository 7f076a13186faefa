// Full fine-tuning in f32: a method that only tests have. It shows what a method needs: a plan, a recipe, and one call
// in each program that registers it (docs/adr/0014).
#pragma once
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/model/artifact.h"
#include "server/plan/method_plan.h"
#include "server/trainer/recipe.h"

namespace nibble::trainer {

inline constexpr char kMethodFullF32[] = "full_f32";

// The row for plan::RegisterMethod.
const plan::MethodPlan& FullF32Plan();

// The `make` of the method's row in AttemptContext::recipes. Training starts from random weights (run.seed); the base
// provides only the architecture and the tokenizer.
absl::StatusOr<std::unique_ptr<Recipe>> MakeFullF32Recipe(const RecipeContext& context);

// Writes an f32 model. values: one span per tensor of RequiredTensors(config), in that order. companions: the directory
// whose tokenizer files are copied. made_of: ArtifactInfo::source.
absl::StatusOr<model::ArtifactInfo> WriteF32Model(base::FileSystem& files, const model::ModelConfig& config,
                                                  std::span<const std::span<const float>> values,
                                                  const std::string& companions, const base::Json& provenance,
                                                  const std::string& target, const char* made_of);

}  // namespace nibble::trainer
