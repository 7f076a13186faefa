// Items of /v1/responses: the parts of a conversation.
#pragma once
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/v1/common.pb.h"
#include "server/base/json.h"

namespace nibble::openai {

// Checks an item of a request, and returns it complete, as the server stores it, without its id. `path`: name of the
// item in errors, with a dot at its end. Errors: InvalidArgument (FIELD_VIOLATION) names the client's field.
absl::StatusOr<base::Json> CheckItem(const base::Json& item, const std::string& path);

// Makes the messages of a conversation from its items. One thread.
class ItemMessages {
 public:
  // `chat` must outlive this object.
  explicit ItemMessages(v1::ChatInput& chat) : chat_(chat) {}
  // `item`: as CheckItem returned it. Errors: as CheckItem, for the result of an unknown call.
  absl::Status Add(const base::Json& item, const std::string& path);

 private:
  v1::ChatInput& chat_;
  std::unordered_map<std::string, std::string> calls_;  // names of functions by call_id
};

}  // namespace nibble::openai
