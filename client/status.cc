#include "client/status.h"

#include <map>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::client {
namespace {

constexpr char kBadRequestUrl[] = "nibble/bad_request";
constexpr char kRetryInfoUrl[] = "nibble/retry_info";

absl::Status Make(int code, const std::string& message, const google::rpc::Status& details) {
  if (code == 0) return absl::OkStatus();
  // gRPC, google.rpc and absl use the same numbers; an unknown number becomes kUnknown.
  const auto known = code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
  absl::Status status(known, message);
  for (const auto& any : details.details()) {
    if (google::rpc::ErrorInfo info; any.UnpackTo(&info)) {
      status = base::WithReason(status, info.reason(),
                                std::map<std::string, std::string>(info.metadata().begin(), info.metadata().end()));
    } else if (google::rpc::BadRequest bad; any.UnpackTo(&bad)) {
      status.SetPayload(kBadRequestUrl, absl::Cord(bad.SerializeAsString()));
    } else if (google::rpc::RetryInfo retry; any.UnpackTo(&retry)) {
      status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
    }
  }
  return status;
}

// A refusal before the handler runs cannot carry details: its message starts with the reason ("REASON: text").
absl::Status WithLeadingReason(absl::Status status) {
  if (!absl::IsUnauthenticated(status) && !absl::IsPermissionDenied(status)) return status;
  const std::string text(status.message());
  const std::size_t colon = text.find(": ");
  if (colon == std::string::npos || text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != colon) return status;
  return base::WithReason(absl::Status(status.code(), text.substr(colon + 2)), text.substr(0, colon));
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  absl::Status made = Make(status.error_code(), status.error_message(), details);
  return base::Reason(made).empty() ? WithLeadingReason(std::move(made)) : made;
}

absl::Status FromProto(const google::rpc::Status& status) { return Make(status.code(), status.message(), status); }

std::vector<FieldViolation> Violations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  google::rpc::BadRequest bad;
  const auto payload = status.GetPayload(kBadRequestUrl);
  if (!payload.has_value() || !bad.ParseFromString(std::string(*payload))) return violations;
  for (const auto& violation : bad.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  google::rpc::RetryInfo retry;
  const auto payload = status.GetPayload(kRetryInfoUrl);
  if (!payload.has_value() || !retry.ParseFromString(std::string(*payload))) return std::nullopt;
  return absl::Seconds(retry.retry_delay().seconds()) + absl::Nanoseconds(retry.retry_delay().nanos());
}

std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace nibble::client
