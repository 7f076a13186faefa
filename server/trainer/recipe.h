// A method: what is trained of a base model, and what becomes of it. The training loop (attempt_run.cc) is the same for all.
#pragma once
#include <functional>
#include <memory>
#include <string>
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

// What a recipe works with; all borrowed.
struct RecipeContext {
  const jobs::AttemptOrder& order;
  std::string directory;  // of the attempt: what base::TemporaryName named there is collected when it is over
  base::FileSystem& files;
  kernels::Stream stream;
  std::function<absl::Status(const std::string&)> log;
  std::function<absl::Status(const std::string& reason, const std::string& message)> warn;
  base::Cancelled cancelled;  // asked in all long work: true where the attempt was told to stop
};

// One thread.
class Recipe {
 public:
  virtual ~Recipe() = default;

  virtual TrainingModel& model() = 0;
  virtual const model::ModelConfig& config() const = 0;  // of what is trained
  virtual std::int64_t max_positions() const = 0;
  virtual const std::string& text_directory() const = 0;  // where tokenizer and template lie
  virtual const std::string& base_digest() const = 0;
  virtual const model::AdapterConfig* adapter() const { return nullptr; }  // of methods that train one

  // The trained model as an artifact in `directory`.
  virtual absl::StatusOr<model::ArtifactInfo> Write(const base::Json& provenance, const std::string& directory) = 0;
  // What `models convert` will make of it to be served, and what the record of that says: where training can foretell it, else
  // `models convert` makes the record itself.
  virtual model::Format served_format() const = 0;
  virtual bool foretells() const { return true; }
  virtual absl::StatusOr<model::Record> MakeRecord(const model::LoadedModel& served,
                                                   const std::vector<std::vector<std::int32_t>>& sequences) = 0;
  // Of methods whose model is served by library products: what the instantiation that trains answers, beside the model in
  // `directory`. Called before Release.
  virtual absl::Status WriteLogprobs(const std::vector<std::vector<std::int32_t>>& /*sequences*/,
                                     const std::string& /*directory*/) {
    return absl::OkStatus();
  }
  // Called before the served form is loaded: frees what no call but config(), adapter(), MakeRecord, Clean and the values of
  // model().parameters() needs, which an interrupted attempt still saves.
  virtual void Release() {}
  // Scratch files of the recipe.
  virtual absl::Status Clean() { return absl::OkStatus(); }
};

// Errors: InvalidArgument and Unimplemented (what the spec asks of this base), Cancelled, those of files and conversions.
absl::StatusOr<std::unique_ptr<Recipe>> MakeQLoraRecipe(const RecipeContext& context);
absl::StatusOr<std::unique_ptr<Recipe>> MakeBitNetRecipe(const RecipeContext& context);
// By the spec's method.
absl::StatusOr<std::unique_ptr<Recipe>> MakeRecipe(const RecipeContext& context);

}  // namespace nibble::trainer
