// Errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}, with an HTTP status and the
// headers by which OpenAI's libraries decide whether to retry.
#pragma once
#include <grpcpp/support/status.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/json.h"
#include "server/http/exchange.h"

namespace nibble::openai {

struct ApiError {
  unsigned status = 500;
  std::string type{};  // "invalid_request_error"
  std::string message{};
  std::string param{};   // field of the request; "" sends null
  std::string code{};    // "model_not_found"; "" sends null
  std::string object{};  // name of the missing object, if the error has one; not sent
  // Whether a retry of the same request can succeed. The libraries themselves would retry every 408, 409, 429 and 5xx.
  bool retry = false;
  std::optional<absl::Duration> retry_after = std::nullopt;
};

// Codes of missing objects. The first is OpenAI's; OpenAI's API has no code for a missing file.
inline constexpr char kJobNotFound[] = "fine_tune_not_found";
inline constexpr char kFileNotFound[] = "file_not_found";

// Renames a field of a request of the gRPC API ("sampling.top_p") to the client's ("top_p").
using RenameField = std::function<std::string(std::string_view)>;
// The names without their messages: "sampling.top_p" -> "top_p", "text" -> "prompt".
std::string PlainField(std::string_view field);

// `rename` also changes the field that the message begins with.
ApiError FromStatus(const grpc::Status& status, const RenameField& rename = PlainField);
// An error of this listener itself, with a reason and fields as those of the gRPC API.
ApiError FromStatus(const absl::Status& status);

// {"message", "type", "param", "code"}.
base::Json ErrorFields(const ApiError& error);
std::string ToJson(const ApiError& error);
http::Reply ToReply(const ApiError& error);
// The error as the last event of a stream.
std::string ToEvent(const ApiError& error);

}  // namespace nibble::openai
