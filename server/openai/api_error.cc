#include "server/openai/api_error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

struct Form {
  unsigned status;
  const char* type;
};

Form FormOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented: return {400, "invalid_request_error"};
    case absl::StatusCode::kUnauthenticated: return {401, "authentication_error"};
    case absl::StatusCode::kPermissionDenied: return {403, "permission_error"};
    case absl::StatusCode::kNotFound: return {404, "not_found_error"};
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition: return {409, "conflict_error"};
    case absl::StatusCode::kResourceExhausted: return {429, "rate_limit_error"};
    case absl::StatusCode::kCancelled: return {499, "request_cancelled"};
    case absl::StatusCode::kDeadlineExceeded: return {504, "timeout_error"};
    case absl::StatusCode::kUnavailable: return {503, "service_unavailable_error"};
    default: return {500, "server_error"};
  }
}

// Codes that OpenAI's users know. Every other reason is sent in lower case.
std::string CodeOf(std::string_view reason, const std::map<std::string, std::string>& metadata) {
  if (const auto code = metadata.find("openai_code"); code != metadata.end()) return code->second;
  if (reason == "PROMPT_TOO_LONG") return "context_length_exceeded";
  if (reason == "TOKEN_MISSING" || reason == "TOKEN_INVALID") return "invalid_api_key";
  if (reason == "MODEL") return "model_not_found";
  if (reason == "JOB") return kJobNotFound;
  if (reason == "DATASET") return kFileNotFound;
  if (reason == "QUEUE_FULL") return "rate_limit_exceeded";
  if (reason == "FIELD_VIOLATION") return metadata.contains("missing") ? "missing_required_parameter" : "invalid_value";
  std::string code(reason);
  std::transform(code.begin(), code.end(), code.begin(), [](unsigned char c) { return std::tolower(c); });
  return code;
}

ApiError Make(absl::StatusCode code, std::string message, std::string_view reason,
              const std::map<std::string, std::string>& metadata) {
  const Form form = FormOf(code);
  ApiError error{
      .status = form.status, .type = form.type, .message = std::move(message), .code = CodeOf(reason, metadata)};
  if (reason == "MODEL") error.param = "model";
  if (reason == "JOB") error.param = "fine_tune_id";
  if (reason == "DATASET") error.param = "id";
  if (const auto name = metadata.find("name"); name != metadata.end()) error.object = name->second;
  // Not a matter of time: the request itself is too large for this server.
  if (reason == "KV_FULL" || reason == "MESSAGE_TOO_LARGE") {
    error.status = 400;
    error.type = "invalid_request_error";
  }
  if (reason == "UPLOAD_TOO_LARGE") {
    error.status = 413;
    error.type = "invalid_request_error";
  }
  if (reason == "OUT_OF_DEVICE_MEMORY" || reason == "DISK_FULL") {
    error.status = 503;
    error.type = "service_unavailable_error";
  }
  error.retry = code == absl::StatusCode::kUnavailable;
  return error;
}

void Rename(std::string_view field, const RenameField& rename, ApiError& error) {
  error.param = rename(field);
  if (error.message.starts_with(StrCat(field, ":"))) error.message.replace(0, field.size(), error.param);
}

}  // namespace

std::string PlainField(std::string_view field) {
  for (const std::string_view prefix : {"sampling.", "stopping.", "output.", "chat.", "GenerateRequest."}) {
    if (field.starts_with(prefix)) return std::string(field.substr(prefix.size()));
  }
  if (field == "text" || field == "token_ids" || field == "input") return "prompt";
  if (field == "chat") return "messages";
  return std::string(field);
}

ApiError FromStatus(const grpc::Status& status, const RenameField& rename) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest bad;
  std::optional<absl::Duration> retry_after;
  for (const auto& any : details.details()) {
    if (any.UnpackTo(&info) || any.UnpackTo(&bad)) continue;
    if (google::rpc::RetryInfo retry; any.UnpackTo(&retry)) {
      retry_after = absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  ApiError error = Make(static_cast<absl::StatusCode>(status.error_code()), status.error_message(), info.reason(),
                        {info.metadata().begin(), info.metadata().end()});
  error.retry_after = retry_after;
  error.retry = error.retry || retry_after.has_value();
  if (bad.field_violations_size() > 0) {
    Rename(bad.field_violations(0).field(), rename, error);
  } else if (const std::size_t colon = error.message.find(':');
             info.reason() == "PROMPT_TOO_LONG" && colon != std::string::npos) {
    Rename(error.message.substr(0, colon), rename, error);
  }
  return error;
}

ApiError FromStatus(const absl::Status& status) {
  const auto metadata = base::ReasonMetadata(status);
  ApiError error = Make(status.code(), std::string(status.message()), base::Reason(status), metadata);
  if (const auto field = metadata.find("field"); field != metadata.end()) error.param = field->second;
  std::int64_t retry_ms = 0;
  if (const auto retry = metadata.find("retry_ms");
      retry != metadata.end() && absl::SimpleAtoi(retry->second, &retry_ms)) {
    error.retry_after = absl::Milliseconds(retry_ms);
    error.retry = true;
  }
  return error;
}

Json ErrorFields(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  return {
      {"message", error.message}, {"type", error.type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}};
}

std::string ToJson(const ApiError& error) { return base::Dump({{"error", ErrorFields(error)}}); }

http::Reply ToReply(const ApiError& error) {
  http::Reply reply{.status = error.status, .fields = {{"Content-Type", "application/json"}}, .body = ToJson(error)};
  reply.fields.emplace_back("x-should-retry", error.retry ? "true" : "false");
  if (error.retry_after.has_value()) {
    reply.fields.emplace_back("retry-after-ms", std::to_string(absl::ToInt64Milliseconds(*error.retry_after)));
    reply.fields.emplace_back("Retry-After",
                              std::to_string(absl::ToInt64Seconds(absl::Ceil(*error.retry_after, absl::Seconds(1)))));
  }
  if (error.status == 401) reply.fields.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

std::string ToEvent(const ApiError& error) { return StrCat("data: ", ToJson(error), "\n\n"); }

}  // namespace nibble::openai
