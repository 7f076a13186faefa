#pragma once
#include <string_view>

#include "absl/status/status.h"

namespace nibble::rpc {

// Unimplemented for "name@version" and "name+adapter", with what to ask for instead. Any other text is looked for as it is.
// `field`: "ScoreRequest.model".
absl::Status CheckModelName(std::string_view field, std::string_view name);

}  // namespace nibble::rpc
