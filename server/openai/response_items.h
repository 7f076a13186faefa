// Items of /v1/responses: the parts of a conversation.
#pragma once
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nibble/v1/common.pb.h"
#include "server/base/json.h"

namespace nibble::openai {

// Appends an item to the conversation, and returns it complete, as the server stores it, without its id. `path`: name
// of the item in errors. Errors: InvalidArgument (FIELD_VIOLATION) names the client's field.
absl::StatusOr<base::Json> ReadItem(const base::Json& item, const std::string& path, v1::ChatInput& chat);

}  // namespace nibble::openai
