#pragma once
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble::base {

// Names that users give (models, datasets, outputs): ^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$ without "..". Safe as
// a file name. InvalidArgument (FIELD_VIOLATION) names the field otherwise.
absl::Status CheckName(std::string_view field, std::string_view name);

// A fresh id of the server's own making: "<prefix>-" and 16 characters of [0-9a-v] from the system's randomness.
std::string NewId(std::string_view prefix);

}  // namespace nibble::base
