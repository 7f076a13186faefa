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
  std::size_t input_bytes = 0;  // of `input` and the instructions
  base::Json echo;              // fields of the response that repeat those of the request
};

// Finds a stored item by its id. nullopt: none.
using FindItem = std::function<std::optional<ResponseItem>(const std::string& id)>;

// The id of the item with this number in a response: "msg_..." with the digits of the response's id.
std::string ItemId(std::string_view prefix, std::string_view response_id, std::size_t number);
// The id of the response that made this id; "" for an id of another form.
std::string ResponseIdOf(std::string_view item_id);
// The item of this response; nullptr: none.
const ResponseItem* FindItemOf(const Turn& turn, std::string_view item_id);

// POST /v1/responses. `max_input_bytes`: of all items, which may be references to large ones. Errors: InvalidArgument
// (FIELD_VIOLATION) names the client's field.
absl::StatusOr<ResponseCall> ParseResponse(const base::Json& body, const FindItem& find_item,
                                           std::size_t max_input_bytes);
// Makes the messages of the prompt: the instructions, the items of `previous` and the turns before it, and those of the
// request. Errors as above.
absl::Status AddMessages(ResponseCall& call, const Turn* previous);

}  // namespace nibble::openai
