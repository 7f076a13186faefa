// A training method in the trainer: which parameters of a base model it trains, and how the result is published. All
// methods share the training loop (attempt_run.cc). A method is a row of the table in methods.cc.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/base/files.h"
#include "server/jobs/attempt.h"
#include "server/model/artifact.h"
#include "server/model/loaded_model.h"
#include "server/model/record.h"
#include "server/trainer/training_model.h"

namespace nibble::trainer {

// Everything that a recipe uses. The objects behind references and pointers must outlive the recipe.
struct RecipeContext {
  const jobs::AttemptOrder& order;
  std::string directory;  // of the attempt; files named by base::TemporaryName are removed when it is over
  base::FileSystem& files;
  kernels::Stream stream;
  std::function<absl::Status(const std::string&)> log;
  std::function<absl::Status(const std::string& reason, const std::string& message)> warn;
  base::Cancelled cancelled;  // called in all long work; true if the attempt must stop
};

// One thread.
class Recipe {
 public:
  virtual ~Recipe() = default;

  virtual TrainingModel& model() = 0;
  virtual const model::ModelConfig& config() const = 0;  // of the trained model
  virtual std::int64_t max_positions() const = 0;
  virtual const std::string& text_directory() const = 0;  // of tokenizer and template
  virtual const std::string& base_digest() const = 0;
  virtual const model::AdapterConfig* adapter() const { return nullptr; }  // null if the method trains none

  // Writes the trained model as an artifact in `directory`.
  virtual absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) = 0;
  // The format in which the model is served: its own (int8, or lora on an int8 base), or the one to which
  // `models convert` converts it; and the record of that form. If training cannot predict the record, `models convert`
  // makes it.
  virtual model::Format served_format() const = 0;
  virtual bool predicts_record() const { return true; }
  virtual absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                                   const std::vector<std::vector<std::int32_t>>& sequences) = 0;
  // For methods whose model is served with library products: writes the logprobs of the training instantiation beside
  // the model in `directory`. Called before Release.
  virtual absl::Status WriteLogprobs(const std::vector<std::vector<std::int32_t>>& /*sequences*/,
                                     const std::string& /*directory*/) {
    return absl::OkStatus();
  }
  // Called before the served form is loaded. Frees everything that config(), adapter(), MakeRecord and Clean do not
  // need, except the values of model().parameters(), which an interrupted attempt still saves.
  virtual void Release() {}
  // Removes scratch files of the recipe.
  virtual absl::Status Clean() { return absl::OkStatus(); }
};

// Makes a recipe of class R and prepares it.
template <typename R>
absl::StatusOr<std::unique_ptr<Recipe>> MakePrepared(const RecipeContext& context) {
  auto recipe = std::make_unique<R>(context);
  if (const absl::Status prepared = recipe->Prepare(); !prepared.ok()) return prepared;
  return std::unique_ptr<Recipe>(std::move(recipe));
}

// Errors: InvalidArgument and Unimplemented (the spec does not fit this base), Cancelled, errors of files and
// conversions.
absl::StatusOr<std::unique_ptr<Recipe>> MakeQLoraRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeBitNetRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeFullRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeInt8MixedRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeInt8QtRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeLoraRecipe(const RecipeContext& context);

// A method of this program: its name in JobSpec::method, and the function that makes its recipe. The row of the method
// in nibbled has the same name (docs/adr/0014-a-method-is-a-row-in-each-program.md).
struct RecipeRow {
  const char* method;
  absl::StatusOr<std::unique_ptr<Recipe>> (*make)(const RecipeContext& context);
};
// The built-in methods (methods.cc). A program with other methods passes its own table (AttemptContext::recipes).
std::span<const RecipeRow> BuiltInRecipes();
// Makes the recipe of the spec's method. Errors: Unimplemented if no row has its name; those of the row's `make`.
absl::StatusOr<std::unique_ptr<Recipe>> MakeRecipe(const RecipeContext& context, std::span<const RecipeRow> rows);

}  // namespace nibble::trainer
