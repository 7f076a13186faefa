// The status of a failed system call on a file.
#pragma once
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble::base {

// "WHAT PATH: the system's text for `error`", with the code that files.h documents for it: a full disk is
// ResourceExhausted (DISK_FULL).
absl::Status ErrnoError(int error, std::string_view what, const std::string& path);

}  // namespace nibble::base
