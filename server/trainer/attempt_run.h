// One attempt of a job, from its order to its outcome.
#pragma once
#include <functional>
#include <string>

#include "kernels/launch_counter.h"
#include "kernels/stream.h"
#include "server/base/files.h"
#include "server/jobs/attempt.h"
#include "server/jobs/journal.h"
#include "server/trainer/reporter.h"

namespace nibble::trainer {

// What an attempt works with; all borrowed.
struct AttemptContext {
  std::string directory;
  const jobs::AttemptOrder& order;
  base::FileSystem& files;
  jobs::JournalWriter& journal;
  Reporter& reporter;
  kernels::Stream stream;
  const std::function<bool()>& terminated;  // SIGTERM came
};

// Trains, publishes the model into the order's output directory and returns the outcome. Cancelled or preempted runs return an
// outcome too; its exit_code is what the process ends with.
jobs::Outcome RunAttempt(const AttemptContext& context);

}  // namespace nibble::trainer
