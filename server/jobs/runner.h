#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::jobs {

struct ExitStatus {
  enum class Kind {
    kExited,    // value: exit code
    kSignaled,  // value: signal
    kUnknown,   // gone, and not our child: how it ended is unknown
  };
  Kind kind = Kind::kUnknown;
  int value = 0;
};

// Identifies a process: a pid alone may belong to another process by now.
struct ProcessId {
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  // field 22 of /proc/PID/stat
};

// Starts and watches the process of an attempt, which outlives this process: a restarted server adopts it. Each attempt
// is identified by its directory. One thread.
class Runner {
 public:
  enum class Signal { kTerminate, kKill };

  virtual ~Runner() = default;  // leaves the processes running

  // Starts the trainer for an attempt whose attempt.json is written. Call at most once per attempt.
  virtual absl::StatusOr<ProcessId> Start(const std::string& attempt_directory) = 0;
  // After a restart: takes over the attempt's process. `recorded` is the process in the database (nothing if the server
  // died before recording it). NotFound if no process of the attempt lives; another error if that cannot be determined
  // now.
  virtual absl::StatusOr<ProcessId> Adopt(const std::string& attempt_directory, std::optional<ProcessId> recorded) = 0;
  // Nothing while the process runs or its state cannot be determined. Once this returns a status, the runner has
  // forgotten the attempt, and no process of the attempt is left. A process that does not end within seconds after
  // SIGKILL is only logged.
  virtual std::optional<ExitStatus> Poll(const std::string& attempt_directory) = 0;
  // Signals the process and its process group. Does nothing if it is gone.
  virtual void Send(const std::string& attempt_directory, Signal signal) = 0;
  // Reaps ended orphans, of trainers or others, whose parent is now this process. Never reaps a trainer: Poll returns
  // its status.
  virtual void ReapStrays() {}
};

struct LocalRunnerOptions {
  std::string trainer_path;              // nibble-trainer, beside nibbled
  std::vector<std::string> environment;  // "KEY=VALUE": the trainer's whole environment (TrainerEnvironment)
};

// Runs trainers as child processes: own process group, stdin /dev/null, stdout and stderr into trainer.log, no core
// files, no inherited descriptors but the attempt's lock. It treats all children of this process as its own: with
// PR_SET_CHILD_SUBREAPER it reaps orphans that trainers leave behind, and kills those still running when the next
// attempt ends.
std::unique_ptr<Runner> MakeLocalRunner(LocalRunnerOptions options);

// The variables of `environment` that a trainer may see, and one that sets how long its idle OpenMP threads spin.
std::vector<std::string> TrainerEnvironment(const std::vector<std::string>& environment);

}  // namespace nibble::jobs
