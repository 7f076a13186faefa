#pragma once
#include <string_view>

#include "absl/status/status.h"

namespace nibble::rpc {

// Errors: Unimplemented for "name@version" and "name+adapter"; the message says what to use instead. OK for any other
// text. `field`: name of the field, such as "ScoreRequest.model".
absl::Status CheckModelName(std::string_view field, std::string_view name);

}  // namespace nibble::rpc
