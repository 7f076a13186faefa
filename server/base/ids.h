#pragma once
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble::base {

// Names that users give (models, datasets, outputs): ^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$ without "..", and no
// IsTemporaryName. Safe as a file name. InvalidArgument (FIELD_VIOLATION) names the field otherwise.
absl::Status CheckName(std::string_view field, std::string_view name);

// The id that makes a repeated request the same one: at most 256 bytes, empty for none. InvalidArgument (FIELD_VIOLATION) otherwise.
absl::Status CheckRequestId(std::string_view id);

// A fresh id of the server's own making: "<prefix>-" and 16 characters of [0-9a-v] from the system's randomness.
std::string NewId(std::string_view prefix);

// A fresh name for work on `name` that is not finished, "<name>.tmp.w-" and 16 characters as above; and whether a name is of
// that very form: such are never shown, and removed at start.
std::string TemporaryName(std::string_view name);
bool IsTemporaryName(std::string_view name);

}  // namespace nibble::base
