// The system calls of the local runner.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::jobs {

// Identifies a process: a pid alone may belong to another process by now.
struct ProcessId {
  std::int64_t pid = 0;
  std::int64_t start_ticks = 0;  // field 22 of /proc/PID/stat; 0: unknown
};

struct ExitStatus {
  enum class Kind {
    kExited,    // value: exit code
    kSignaled,  // value: signal
    kUnknown,   // not our child, or it has not ended
  };
  Kind kind = Kind::kUnknown;
  int value = 0;
};

struct ChildPlan {
  std::vector<std::string> arguments;  // the first is also the path of the program
  std::vector<std::string> environment;
  int standard_input = -1;
  int standard_output = -1;  // and standard error
  int inherited = -1;        // the one other descriptor that the program inherits; the child writes its pid there
  int error_pipe = -1;       // close-on-exec; the child writes errno there if it cannot start the program
};

// Forks and executes the program in its own process group, without core files, as a preferred victim of the OOM killer.
absl::StatusOr<pid_t> Spawn(const ChildPlan& plan);

// Reaps a child that has ended; with `wait`, waits for its end first. kUnknown if the process is not our child, or has
// not ended and `wait` is false.
ExitStatus Reap(pid_t pid, bool wait);

// When the process started: field 22 of /proc/PID/stat. Nothing if the process is gone or a zombie; an error if that
// cannot be determined now.
absl::StatusOr<std::optional<std::int64_t>> StartTicks(pid_t pid);

}  // namespace nibble::jobs
