// JSON in files that people write.
#pragma once
#include <string_view>

#include "absl/status/statusor.h"
#include "server/base/json.h"

namespace nibble::base {

// As ParseJson. Errors begin with `file`, and name the line and the column (in characters, both from 1) of malformed
// text.
absl::StatusOr<Json> ParseJsonFile(std::string_view text, std::string_view file);

}  // namespace nibble::base
