// Requests to complete a text or a conversation, translated to the gRPC API.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/base/json.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

inline constexpr std::size_t kMaxPrompts = 2048;  // of one request, as OpenAI's own limit

struct GenerateCall {
  std::string model;
  std::vector<v1::GenerateRequest> prompts;  // each gives n choices
  int n = 1;                                 // choices of each prompt
  bool chat = false;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;
  bool score_only = false;  // max_tokens 0: the generated token is dropped
  std::optional<int> logprobs;
  // As the client calls them.
  std::string max_tokens_field = "max_tokens";
  std::string messages_field = "messages";
  std::string constraint_field;  // "" without a constraint
};

// POST /v1/completions. Errors: InvalidArgument (FIELD_VIOLATION) names the client's field.
absl::StatusOr<GenerateCall> ParseCompletion(const base::Json& body);
// POST /v1/chat/completions. Errors as above.
absl::StatusOr<GenerateCall> ParseChat(const base::Json& body);

// The fields that the requests of all endpoints share: the model, sampling, and when an output ends.
v1::GenerateRequest ReadModelRequest(JsonFields& fields, GenerateCall& call);
// `minimum`: 0 where a request may ask for no token.
void ReadMaxTokens(JsonFields& fields, const char* name, int minimum, v1::Stopping& stopping);

// The messages of a chat. `path`: name of the field. Errors as above.
absl::StatusOr<v1::ChatInput> ParseMessages(const base::Json& messages, std::string_view path);

}  // namespace nibble::openai
