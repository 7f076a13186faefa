// Runs one attempt of a job, from its order to its outcome.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "kernels/launch_counter.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/jobs/attempt.h"
#include "server/jobs/attempt_claim.h"
#include "server/jobs/journal.h"
#include "server/trainer/recipe.h"
#include "server/trainer/reporter.h"

namespace nibble::trainer {

// Everything that an attempt uses. The objects behind references and pointers must outlive the run.
struct AttemptContext {
  std::string directory;
  const jobs::AttemptOrder& order;
  const jobs::AttemptClaim& claim;
  base::FileSystem& files;
  jobs::JournalWriter& journal;
  Reporter& reporter;
  kernels::Stream stream;
  const std::function<bool()>& terminated;  // whether SIGTERM was received, or a command to stop by the report stream
  std::span<const RecipeRow> recipes = BuiltInRecipes();
};

// Trains, publishes the model into the order's output directory and returns the outcome. Cancelled or preempted runs
// also return an outcome. The process must exit with its exit_code.
jobs::Outcome RunAttempt(const AttemptContext& context);

}  // namespace nibble::trainer
