// Checks of flags before anything starts.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/isa.h"
#include "server/options.h"

namespace nibble {

// InvalidArgument names the flag and what is wrong with it.
absl::Status CheckFlags(const AppOptions& options);
// InvalidArgument if the name is unknown or this machine does not support it.
absl::StatusOr<kernels::Isa> PickIsa(const std::string& flag);
// Raises the limit of open files to what the listeners' connections need, as far as allowed; warns if it is still too
// low.
void RaiseOpenFiles(const AppOptions& options);

}  // namespace nibble
