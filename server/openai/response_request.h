// Requests of /v1/responses, translated to the gRPC API.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/v1/common.pb.h"
#include "server/base/json.h"
#include "server/openai/generate_request.h"
#include "server/openai/response_store.h"

namespace nibble::openai {

inline constexpr int kMaxTurns = 1000;  // of one conversation by previous_response_id

struct ResponseCall {
  // Its only prompt has no messages before AddMessages.
  GenerateCall generate;
  std::string id;  // of the response: "resp_..."
  std::optional<std::string> instructions;
  std::string previous_response_id;  // "": none
  std::optional<bool> store;
  std::vector<ResponseItem> input;
  base::Json echo;  // fields of the response that repeat those of the request
};

// Finds a stored item by its id, as JSON.
using FindItem = std::function<std::optional<std::string>(const std::string& id)>;

// The id of the item with this number in a response: "msg_..." with the digits of the response's id.
std::string ItemId(std::string_view prefix, std::string_view response_id, std::size_t number);
// The id of the response that made this id; "" for an id of another form.
std::string ResponseIdOf(std::string_view item_id);

// POST /v1/responses. Errors: InvalidArgument (FIELD_VIOLATION) names the client's field.
absl::StatusOr<ResponseCall> ParseResponse(const base::Json& body, const FindItem& find_item);
// Makes the messages of the prompt: the instructions, the items of `previous` and the turns before it, and those of the
// request. Errors as above.
absl::Status AddMessages(ResponseCall& call, const Turn* previous);

}  // namespace nibble::openai
