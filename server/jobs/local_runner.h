#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/jobs/runner.h"

namespace nibble::jobs {

struct LocalRunnerOptions {
  std::string trainer_path;              // nibble-trainer, beside nibbled
  std::vector<std::string> environment;  // "KEY=VALUE": the trainer's whole environment (TrainerEnvironment)
};

// Runs trainers as child processes: own process group, stdin /dev/null, stdout and stderr into trainer.log, no core
// files, no inherited descriptors but the attempt's lock. It treats all children of this process as its own: with
// PR_SET_CHILD_SUBREAPER it reaps orphans that trainers leave behind, and kills those still running when an
// attempt ends. A trainer's handle is "PID/START_TICKS": a pid alone may belong to another process by now.
std::unique_ptr<Runner> MakeLocalRunner(LocalRunnerOptions options);

// The variables of `environment` that a trainer may see, and one that sets how long its idle OpenMP threads spin.
std::vector<std::string> TrainerEnvironment(const std::vector<std::string>& environment);

}  // namespace nibble::jobs
