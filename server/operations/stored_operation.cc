#include "server/operations/stored_operation.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::operations {

namespace {

constexpr std::int64_t kVersion = 2;
constexpr std::int64_t kMaxCode = 16;  // highest canonical status code
// More than an answer shows (rpc/status.h), and little enough that every file can be read again (kMaxFileBytes).
constexpr std::size_t kMaxMessageBytes = 64u << 10;

base::Json JsonOf(const OperationResponse& response) {
  return {{"type", response.type}, {"bytes", absl::BytesToHexString(response.bytes)}};
}

base::Json JsonOf(const absl::Status& error) {
  const std::string message(error.message().substr(0, kMaxMessageBytes));
  base::Json json = base::Json::object();
  json["code"] = static_cast<int>(error.code());
  json["message"] = message;
  // JSON cannot hold these bytes: Dump replaces them in "message".
  if (!base::IsValidUtf8(message)) json["message_bytes"] = absl::BytesToHexString(message);
  std::map<std::string, std::string> payloads;
  error.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    payloads[std::string(type)] = absl::BytesToHexString(std::string(payload));
  });
  json["payloads"] = payloads;
  return json;
}

absl::StatusOr<std::string> GetBytes(const base::Json& json, std::string_view key, std::string_view file) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string hex, base::GetString(json, key, file));
  if (hex.size() % 2 != 0 || !std::all_of(hex.begin(), hex.end(),
                                          [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); })) {
    return absl::InvalidArgumentError(base::StrCat(file, ": \"", key, "\" is not hexadecimal"));
  }
  return absl::HexStringToBytes(hex);
}

absl::Status WrongObject(std::string_view key, std::string_view file) {
  return absl::InvalidArgumentError(base::StrCat(file, ": \"", key, "\" is absent or not an object"));
}

absl::StatusOr<OperationResponse> ParseResponse(const base::Json& json, std::string_view file) {
  OperationResponse response;
  NIBBLE_ASSIGN_OR_RETURN(response.type, base::GetString(json, "type", file));
  NIBBLE_ASSIGN_OR_RETURN(response.bytes, GetBytes(json, "bytes", file));
  return response;
}

absl::Status ParseError(const base::Json& json, std::string_view file, absl::Status& error) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t code, base::GetInt(json, "code", file));
  if (code < 1 || code > kMaxCode) {
    return absl::InvalidArgumentError(base::StrCat(file, ": \"code\" is ", code, ", wanted 1 to ", kMaxCode));
  }
  NIBBLE_ASSIGN_OR_RETURN(std::string message, base::GetString(json, "message", file));
  if (json.contains("message_bytes")) {
    NIBBLE_ASSIGN_OR_RETURN(message, GetBytes(json, "message_bytes", file));
  }
  error = absl::Status(static_cast<absl::StatusCode>(code), message);
  const auto payloads = json.find("payloads");
  if (payloads == json.end() || !payloads->is_object()) return WrongObject("payloads", file);
  for (const auto& [type, hex] : payloads->items()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, GetBytes(*payloads, type, file));
    error.SetPayload(type, absl::Cord(bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Operation> ParseV2(const base::Json& json, std::string_view file) {
  Operation operation;
  NIBBLE_ASSIGN_OR_RETURN(operation.name, base::GetString(json, "name", file));
  if (operation.name.empty()) return absl::InvalidArgumentError(base::StrCat(file, ": \"name\" is empty"));
  OperationMetadata& metadata = operation.metadata;
  NIBBLE_ASSIGN_OR_RETURN(metadata.model, base::GetString(json, "model", file));
  NIBBLE_ASSIGN_OR_RETURN(metadata.kind, base::GetString(json, "kind", file, ""));
  NIBBLE_ASSIGN_OR_RETURN(metadata.stage, base::GetString(json, "stage", file));
  NIBBLE_ASSIGN_OR_RETURN(metadata.done, base::GetInt(json, "done", file));
  NIBBLE_ASSIGN_OR_RETURN(metadata.total, base::GetInt(json, "total", file));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t created, base::GetInt(json, "created_ns", file));
  metadata.created = absl::FromUnixNanos(created);
  NIBBLE_ASSIGN_OR_RETURN(operation.done, base::GetBool(json, "finished", file));
  if (!operation.done) return operation;
  if (const auto response = json.find("response"); response != json.end()) {
    if (!response->is_object()) return WrongObject("response", file);
    NIBBLE_ASSIGN_OR_RETURN(operation.response, ParseResponse(*response, file));
    return operation;
  }
  const auto error = json.find("error");
  if (error == json.end() || !error->is_object()) return WrongObject("error", file);
  NIBBLE_RETURN_IF_ERROR(ParseError(*error, file, operation.error));
  return operation;
}

absl::StatusOr<Operation> ParseV1(const base::Json& json, std::string_view file, const OperationParser& parse_v1) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string hex, base::GetString(json, "operation", file));
  if (!parse_v1) return absl::InvalidArgumentError(base::StrCat(file, ": is of version 1"));
  auto operation = parse_v1(absl::HexStringToBytes(hex));
  if (!operation.ok() || operation->name.empty()) {
    return absl::InvalidArgumentError(
        base::StrCat(file, ": \"operation\" is not a google.longrunning.Operation with a name"));
  }
  return operation;
}

}  // namespace

std::string Serialized(const StoredOperation& stored) {
  const Operation& operation = *stored.operation;
  base::Json json = base::Json::object();
  json["version"] = kVersion;
  json["name"] = operation.name;
  json["model"] = operation.metadata.model;
  json["kind"] = operation.metadata.kind;
  json["stage"] = operation.metadata.stage;
  json["done"] = operation.metadata.done;
  json["total"] = operation.metadata.total;
  json["created_ns"] = absl::ToUnixNanos(operation.metadata.created);
  json["finished"] = operation.done;
  if (operation.response.has_value()) {
    json["response"] = JsonOf(*operation.response);
  } else if (operation.done) {
    json["error"] = JsonOf(operation.error);
  }
  json["request_id"] = stored.request_id;
  json["request_digest"] = stored.request_digest;
  json["tenant"] = stored.owner.tenant;
  json["principal"] = stored.owner.name;
  json["holds_files"] = stored.holds_files;
  json["done_at_once"] = stored.done_at_once;
  json["ended_unix_s"] = operation.done ? absl::ToUnixSeconds(stored.ended) : 0;
  return base::Dump(json);
}

absl::StatusOr<StoredOperation> ParseStoredOperation(std::string_view text, std::string_view file,
                                                     const OperationParser& parse_v1) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  if (!json.is_object()) return absl::InvalidArgumentError(base::StrCat(file, ": is not an object"));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t version, base::GetInt(json, "version", file, 1));
  if (version != 1 && version != kVersion) {
    return absl::InvalidArgumentError(base::StrCat(file, ": \"version\" is ", version, ", wanted 1 or ", kVersion));
  }
  NIBBLE_ASSIGN_OR_RETURN(Operation operation, version == 1 ? ParseV1(json, file, parse_v1) : ParseV2(json, file));
  StoredOperation stored;
  stored.operation = std::make_shared<const Operation>(std::move(operation));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t ended, base::GetInt(json, "ended_unix_s", file, 0));
  stored.ended = absl::FromUnixSeconds(ended);
  // A field with a wrong type gets its default; the operation is kept.
  stored.request_id = base::GetString(json, "request_id", file, "").value_or("");
  stored.request_digest = base::GetString(json, "request_digest", file, "").value_or("");
  stored.owner.tenant = base::GetString(json, "tenant", file, "").value_or("");
  stored.owner.name = base::GetString(json, "principal", file, base::kUnnamedCaller).value_or(base::kUnnamedCaller);
  stored.holds_files = base::GetBool(json, "holds_files", file, false).value_or(false);
  stored.done_at_once = base::GetBool(json, "done_at_once", file, false).value_or(false);
  return stored;
}

}  // namespace nibble::operations
