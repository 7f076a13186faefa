// What of the flags is checked before anything starts.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/isa.h"
#include "server/app.h"

namespace nibble {

// InvalidArgument names the flag, what it got and what it wanted.
absl::Status CheckFlags(const AppOptions& options);
// InvalidArgument for a name that is none, or one that this machine does not have.
absl::StatusOr<kernels::Isa> PickIsa(const std::string& flag);
// Raises the limit of open files as far as it may be; warns when that is not enough for so many connections.
void RaiseOpenFiles(int max_connections);

}  // namespace nibble
