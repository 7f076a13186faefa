// Checks the names and ids that users choose, and makes those of the server.
#pragma once
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble::base {

// Checks a name that a user chose (model, dataset, output): it must match
// ^[a-zA-Z0-9]([-a-zA-Z0-9._]{0,61}[a-zA-Z0-9])?$ without "..", and must not be an IsTemporaryName. A valid name is
// safe as a file name. InvalidArgument (FIELD_VIOLATION) names the field.
absl::Status CheckName(std::string_view field, std::string_view name);

// Name of every caller on a server without a token file. It has no quotas, so no principal may have it.
inline constexpr char kUnnamedCaller[] = "local";
// Checks the name of a principal: like CheckName, and not kUnnamedCaller.
absl::Status CheckPrincipalName(std::string_view field, std::string_view name);

// Checks an idempotency key: at most 256 bytes; empty means none. InvalidArgument (FIELD_VIOLATION) if longer.
absl::Status CheckRequestId(std::string_view id);

// A new id that the server generates: "<prefix>-" and 16 characters of [0-9a-v] from the system's random source.
std::string NewId(std::string_view prefix);

// A new name for unfinished work on `name`: "<name>.tmp.w-" and 16 characters as above.
std::string TemporaryName(std::string_view name);
// True for names of exactly that form. They are never listed, and the server removes them at start.
bool IsTemporaryName(std::string_view name);

}  // namespace nibble::base
