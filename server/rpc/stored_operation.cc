#include "server/rpc/stored_operation.h"

#include "absl/strings/escaping.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::rpc {

std::string Serialized(const StoredOperation& record) {
  base::Json json = base::Json::object();
  json["request_id"] = record.request_id;
  json["request_digest"] = record.request_digest;
  json["tenant"] = record.owner.tenant;
  json["principal"] = record.owner.name;
  json["holds_files"] = record.holds_files;
  json["done_at_once"] = record.done_at_once;
  json["ended_unix_s"] = record.operation->done() ? absl::ToUnixSeconds(record.ended) : 0;
  json["operation"] = absl::BytesToHexString(record.operation->SerializeAsString());
  return base::Dump(json);
}

absl::StatusOr<StoredOperation> ParseStoredOperation(std::string_view text, std::string_view file) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  if (!json.is_object()) return absl::InvalidArgumentError(base::StrCat(file, ": is not an object"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string hex, base::GetString(json, "operation", file));
  auto operation = std::make_shared<google::longrunning::Operation>();
  if (!operation->ParseFromString(absl::HexStringToBytes(hex)) || operation->name().empty()) {
    return absl::InvalidArgumentError(
        base::StrCat(file, ": \"operation\" is not a google.longrunning.Operation with a name"));
  }
  StoredOperation record;
  record.operation = std::move(operation);
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t ended, base::GetInt(json, "ended_unix_s", file, 0));
  record.ended = absl::FromUnixSeconds(ended);
  // A field with a wrong type gets its default; the operation is kept.
  record.request_id = base::GetString(json, "request_id", file, "").value_or("");
  record.request_digest = base::GetString(json, "request_digest", file, "").value_or("");
  record.owner.tenant = base::GetString(json, "tenant", file, "").value_or("");
  record.owner.name = base::GetString(json, "principal", file, auth::kNobody).value_or(auth::kNobody);
  record.holds_files = base::GetBool(json, "holds_files", file, false).value_or(false);
  record.done_at_once = base::GetBool(json, "done_at_once", file, false).value_or(false);
  return record;
}

}  // namespace nibble::rpc
