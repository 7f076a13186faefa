#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "server/jobs/runner.h"
#include "server/options.h"

namespace nibble {

// The runner that --runner names. Errors: InvalidArgument, FailedPrecondition (--runner kubernetes: its flags, or the
// file of templates; the message names the flag); those of reading the file.
absl::StatusOr<std::unique_ptr<jobs::Runner>> MakeRunner(const AppOptions& options);

}  // namespace nibble
