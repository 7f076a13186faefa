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
    kUnknown,   // gone, and not our child: nobody can say how
  };
  Kind kind = Kind::kUnknown;
  int value = 0;
};

// One process in the life of the machine: a pid alone may be another's by now.
struct ProcessId {
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  // field 22 of /proc/PID/stat
};

// Starts and watches the process of an attempt. What it starts outlives this process: a server that comes back adopts it.
// An attempt's directory identifies it; everything is asked by that. One thread.
class Runner {
 public:
  enum class Signal { kTerminate, kKill };

  virtual ~Runner() = default;  // leaves the processes alone

  // Starts the trainer for an attempt whose attempt.json is written. At most once an attempt.
  virtual absl::StatusOr<ProcessId> Start(const std::string& attempt_directory) = 0;
  // After a restart: takes over the attempt's process. `recorded` is what the database knows (nothing when the server died
  // between start and record). NotFound when no process of the attempt lives; another error when that cannot be told now.
  virtual absl::StatusOr<ProcessId> Adopt(const std::string& attempt_directory, std::optional<ProcessId> recorded) = 0;
  // Nothing while it runs, or while that cannot be told. Once it has answered, no process of the attempt is left, and it is forgotten.
  virtual std::optional<ExitStatus> Poll(const std::string& attempt_directory) = 0;
  // To the process and all that it started. Fine when it is gone.
  virtual void Send(const std::string& attempt_directory, Signal signal) = 0;
  // Takes in what has ended of the processes that trainers, or others, left to this one. Never a trainer: its end is Poll's to tell.
  virtual void ReapStrays() {}
};

struct LocalRunnerOptions {
  std::string trainer_path;              // nibble-trainer, beside nibbled
  std::vector<std::string> environment;  // "KEY=VALUE": all that the trainer gets (TrainerEnvironment)
};

// Child processes of this one: own process group, stdin /dev/null, stdout and stderr into trainer.log, no core files, no
// inherited descriptors but the attempt's lock. All children of this process are taken to be its own: with PR_SET_CHILD_SUBREAPER
// those that trainers leave behind are reaped, and ended with the next attempt that ends.
std::unique_ptr<Runner> MakeLocalRunner(LocalRunnerOptions options);

// Those of `environment` that a trainer may see, and how long its OpenMP threads wait for work before they sleep.
std::vector<std::string> TrainerEnvironment(const std::vector<std::string>& environment);

}  // namespace nibble::jobs
