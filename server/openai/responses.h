// The endpoints /v1/responses.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/openai/inner_calls.h"
#include "server/openai/response_request.h"
#include "server/openai/response_store.h"

namespace nibble::openai {

// A request whose conversation was found.
struct PreparedResponse {
  ResponseCall call;
  std::shared_ptr<const Turn> previous;  // of previous_response_id; nullptr: none
  std::size_t conversation_bytes = 0;    // of the items of the request and of `previous`
};

// Checks a request and finds what it refers to in the store. `max_conversation_bytes`: of all items. Errors: those of
// ParseResponse, InvalidArgument and FailedPrecondition name the client's field.
absl::StatusOr<PreparedResponse> PrepareResponse(const base::Json& body, const std::string& owner, ResponseStore& store,
                                                 std::size_t max_conversation_bytes);
// Answers the request. Takes time in proportion to the conversation. The store and the stubs must outlive the calls.
void RunResponse(std::shared_ptr<Incoming> incoming, PreparedResponse prepared, ResponseStore& store,
                 const Stubs& stubs, std::size_t max_answer_bytes);

void GetResponse(const Incoming& incoming, const std::string& id, ResponseStore& store);
void DeleteResponse(const Incoming& incoming, const std::string& id, ResponseStore& store);
// Refused: no response runs in the background.
void CancelResponse(const Incoming& incoming, const std::string& id, ResponseStore& store);
void ListInputItems(const Incoming& incoming, const std::string& id, ResponseStore& store);

}  // namespace nibble::openai
