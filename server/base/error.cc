#include "server/base/error.h"

#include "server/base/json.h"
#include "server/base/strings.h"

namespace nibble::base {
namespace {
constexpr char kPayloadUrl[] = "nibble/error_info";
}

absl::Status WithReason(absl::Status status, std::string_view reason,
                        const std::map<std::string, std::string>& metadata) {
  Json info = Json::object();
  info["reason"] = std::string(reason);
  info["metadata"] = metadata;
  status.SetPayload(kPayloadUrl, absl::Cord(Dump(info)));
  return status;
}

namespace {
Json Info(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return Json::object();
  auto parsed = ParseJson(std::string(*payload));
  return parsed.ok() ? *std::move(parsed) : Json::object();
}
}  // namespace

std::string Reason(const absl::Status& status) { return Info(status).value("reason", std::string()); }

std::map<std::string, std::string> ReasonMetadata(const absl::Status& status) {
  return Info(status).value("metadata", std::map<std::string, std::string>());
}

absl::Status About(const absl::Status& status, std::string_view name) {
  std::map<std::string, std::string> metadata = ReasonMetadata(status);
  if (!absl::IsFailedPrecondition(status) || !metadata.emplace("name", name).second) return status;
  return WithReason(status, Reason(status), metadata);
}

absl::Status FieldError(std::string_view field, std::string_view message) {
  return WithReason(absl::InvalidArgumentError(StrCat(field, ": ", message)), "FIELD_VIOLATION",
                    {{"field", std::string(field)}});
}

}  // namespace nibble::base
