#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/jobs/runner.h"
#include "server/options.h"

namespace nibble {

struct TrainerRunner {
  std::unique_ptr<jobs::Runner> runner;
  std::string name_space;  // the Kubernetes namespace in which trainers run; "" for --runner local
};

// The runner that --runner names. Errors with --runner kubernetes: InvalidArgument (a flag that is missing or has a bad
// value, or the file of templates), those of kube::ClusterAccessOf, and those of reading the file.
absl::StatusOr<TrainerRunner> MakeRunner(const AppOptions& options);

}  // namespace nibble
