// The system calls of the local runner.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

struct ChildPlan {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  int standard_input = -1;
  int standard_output = -1;  // and standard error
  int kept = -1;             // the one other descriptor that the child inherits; its pid is written into it
  int error_pipe = -1;       // close-on-exec; errno is written here when the program cannot be started
};

// Forks and executes the program in its own process group, without core files, as a preferred victim of the OOM killer.
absl::StatusOr<pid_t> Spawn(const ChildPlan& plan);

// Reaps an ended process; with `wait` it waits for the end. kUnknown if the process is not our child.
ExitStatus Reap(pid_t pid, bool wait);

// Field 22 of /proc/PID/stat; nothing for a process that is gone or a zombie. An error if that cannot be determined
// now.
absl::StatusOr<std::optional<std::int64_t>> StartTicks(pid_t pid);

}  // namespace nibble::jobs
