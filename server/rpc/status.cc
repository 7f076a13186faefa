#include "server/rpc/status.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/rpc/deterministic_bytes.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

// gRPC's default limit for all metadata of an answer is 8 KiB. The message is sent twice, once percent-encoded.
constexpr std::size_t kMaxMessageBytes = 1024;
constexpr std::size_t kMaxDetailBytes = 192;
constexpr int kMaxViolations = 20;
constexpr std::size_t kMaxViolationBytes = 2048;
constexpr std::size_t kMaxDetailsBytes = 4096;

std::string Shown(std::string_view text, std::size_t max_bytes = kMaxDetailBytes) {
  return ToUtf8(WithoutInternals(text), max_bytes);
}

constexpr std::int64_t kRetryMs = 1000;  // if the error has no estimate of its own ("retry_ms")

// Errors that waiting can resolve. Not KV_FULL and MESSAGE_TOO_LARGE: the request exceeds a limit that stays the same.
bool IsRetryable(const absl::Status& status, std::string_view reason) {
  return absl::IsUnavailable(status) || reason == "QUEUE_FULL" || reason == "TENANT_QUOTA";
}

// Adds a violation for each field that the metadata names. jobs::Validate sets one entry per field (and a message
// such as "qlora.r: is 0; optim.lr: ..."). base::FieldError sets only "field"; then the message describes the
// violation.
void AddViolations(const absl::Status& status, std::map<std::string, std::string>& metadata, google::rpc::Status& out) {
  google::rpc::BadRequest bad;
  const auto add = [&](const std::string& field, const std::string& text) {
    if (bad.field_violations_size() >= kMaxViolations || bad.ByteSizeLong() > kMaxViolationBytes) return;
    auto* violation = bad.add_field_violations();
    violation->set_field(Shown(field));
    violation->set_description(Shown(text));
  };
  const auto first = metadata.find("field");
  if (first == metadata.end()) return;
  bool found = false;
  for (const auto& [key, value] : metadata) {
    if (key == "field" || value.empty()) continue;
    add(key, value);
    found = true;
  }
  if (!found) add(first->second, std::string(status.message()));
  // The violations hold the fields; a second copy would not fit.
  std::map<std::string, std::string> kept = {{"field", first->second}};
  metadata.swap(kept);
  out.add_details()->PackFrom(bad);
}

// Parses "line 3: ...; lines 5, 8-9: ..." of a refused dataset (data::FileValidator): a violation for each line or
// range.
void AddLines(const absl::Status& status, google::rpc::Status& out) {
  google::rpc::BadRequest bad;
  std::string text(status.message());
  for (std::size_t at = 0; at < text.size() && bad.field_violations_size() < kMaxViolations;) {
    if (bad.ByteSizeLong() > kMaxViolationBytes) break;
    std::size_t end = text.find("; ", at);
    if (end == std::string::npos) end = text.size();
    const std::string part = text.substr(at, end - at);
    const std::size_t colon = part.find(": ");
    if (part.rfind("line", 0) == 0 && colon != std::string::npos) {
      for (const auto range : absl::StrSplit(part.substr(part.find(' ') + 1, colon - part.find(' ') - 1), ", ")) {
        if (bad.field_violations_size() == kMaxViolations || bad.ByteSizeLong() > kMaxViolationBytes) break;
        auto* violation = bad.add_field_violations();
        violation->set_field(
            Shown(base::StrCat(absl::StrContains(range, '-') ? "lines " : "line ", base::ToStd(range))));
        violation->set_description(Shown(part.substr(colon + 2)));
      }
    }
    at = end + 2;
  }
  if (bad.field_violations_size() > 0) out.add_details()->PackFrom(bad);
}

void AddResource(const std::string& reason, const std::map<std::string, std::string>& metadata,
                 google::rpc::Status& out) {
  const auto name = metadata.find("name");
  if (name == metadata.end()) return;
  // Without a "kind", the reason names the kind of resource.
  const auto kind = metadata.find("kind");
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(kind != metadata.end() ? kind->second : absl::AsciiStrToLower(reason));
  resource.set_resource_name(Shown(name->second));
  out.add_details()->PackFrom(resource);
}

}  // namespace

const char* CodeName(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return "OK";
    case absl::StatusCode::kCancelled: return "CANCELLED";
    case absl::StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound: return "NOT_FOUND";
    case absl::StatusCode::kAlreadyExists: return "ALREADY_EXISTS";
    case absl::StatusCode::kPermissionDenied: return "PERMISSION_DENIED";
    case absl::StatusCode::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition: return "FAILED_PRECONDITION";
    case absl::StatusCode::kAborted: return "ABORTED";
    case absl::StatusCode::kOutOfRange: return "OUT_OF_RANGE";
    case absl::StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    case absl::StatusCode::kInternal: return "INTERNAL";
    case absl::StatusCode::kUnavailable: return "UNAVAILABLE";
    case absl::StatusCode::kDataLoss: return "DATA_LOSS";
    case absl::StatusCode::kUnauthenticated: return "UNAUTHENTICATED";
    default: return "UNKNOWN";
  }
}

std::string ToUtf8(std::string_view text, std::size_t max_bytes) {
  std::string clean;
  const std::size_t used = base::TakeWholeCharacters(text, &clean);
  if (used < text.size()) clean += "\xEF\xBF\xBD";  // U+FFFD for a last character that is incomplete
  if (clean.size() <= max_bytes) return clean;
  return clean.substr(0, base::WholeCharacters(clean, max_bytes));
}

std::string WithoutInternals(std::string_view text) {
  constexpr std::string_view kEndOfPath = " \t\r\n\"'`,;:()<>[]{}|";
  constexpr std::string_view kHex = "0123456789abcdefABCDEF";
  constexpr std::size_t kMinAddress = 8;  // 0x and six digits: shorter ones are ordinary numbers
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool begins = at == 0 || kEndOfPath.find(text[at - 1]) != std::string_view::npos || text[at - 1] == '=';
    if (begins && text[at] == '/') {
      std::size_t end = std::min(text.find_first_of(kEndOfPath, at), text.size());
      const std::string_view path = text.substr(at, end - at);
      const std::size_t last = path.find_last_not_of('/');
      const std::size_t slash = last == std::string_view::npos ? 0 : path.rfind('/', last);
      out += slash > 0 ? "..." : "";
      out += path.substr(slash);
      at = end;
    } else if (begins && text.substr(at, 2) == "0x" &&
               std::min(text.find_first_not_of(kHex, at + 2), text.size()) - at >= kMinAddress) {
      out += "0x...";
      at = std::min(text.find_first_not_of(kHex, at + 2), text.size());
    } else {
      out += text[at++];
    }
  }
  return out;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status out;
  out.set_code(static_cast<int>(status.code()));
  if (status.ok()) return out;
  out.set_message(Shown(base::ToStd(status.message()), kMaxMessageBytes));
  std::string reason = base::Reason(status);
  if (reason.empty()) reason = CodeName(status.code());
  std::map<std::string, std::string> metadata = base::ReasonMetadata(status);
  if (reason == "DATASET_FORMAT") AddLines(status, out);
  if (absl::IsInvalidArgument(status)) AddViolations(status, metadata, out);
  if (absl::IsNotFound(status) || absl::IsAlreadyExists(status)) AddResource(reason, metadata, out);
  if (absl::IsResourceExhausted(status)) {
    google::rpc::QuotaFailure quota;
    auto* violation = quota.add_violations();
    violation->set_subject(reason);
    violation->set_description(ToUtf8(out.message(), kMaxDetailBytes));
    out.add_details()->PackFrom(quota);
  }
  if (absl::IsFailedPrecondition(status)) {
    google::rpc::PreconditionFailure failure;
    auto* violation = failure.add_violations();
    violation->set_type(reason);
    if (const auto name = metadata.find("name"); name != metadata.end()) violation->set_subject(Shown(name->second));
    violation->set_description(ToUtf8(out.message(), kMaxDetailBytes));
    out.add_details()->PackFrom(failure);
  }
  if (IsRetryable(status, reason)) {
    google::rpc::RetryInfo retry;
    std::int64_t wait_ms = kRetryMs;
    if (const auto own = metadata.find("retry_ms"); own != metadata.end())
      wait_ms = std::strtoll(own->second.c_str(), nullptr, 10);
    *retry.mutable_retry_delay() = ToProto(absl::Milliseconds(wait_ms));
    out.add_details()->PackFrom(retry);
  }
  // Messages that a handler attached, such as Usage.
  status.ForEachPayload([&](absl::string_view type_url, const absl::Cord& payload) {
    if (!absl::StartsWith(type_url, "type.googleapis.com/")) return;
    auto* detail = out.add_details();
    detail->set_type_url(std::string(type_url));
    detail->set_value(std::string(payload));
  });
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(kErrorDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[ToUtf8(key, 64)] = Shown(value);
  // Pack ErrorInfo last, so that it is kept longest: without it programs cannot handle the error.
  auto* packed = out.add_details();
  packed->PackFrom(info);
  packed->set_value(DeterministicBytes(info));  // the same answer in every call that reports the error
  while (out.details_size() > 1 && out.ByteSizeLong() > kMaxDetailsBytes) out.mutable_details()->DeleteSubrange(0, 1);
  return out;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const google::rpc::Status details = ToRpcStatus(status);
  // absl, gRPC and google.rpc have the same numbers for the canonical codes.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(), details.SerializeAsString());
}

absl::Status StoppedAt(const absl::Status& status, std::string_view stage, std::int64_t tokens) {
  if (!absl::IsCancelled(status) && !absl::IsDeadlineExceeded(status)) return status;
  return base::WithReason(status, CodeName(status.code()),
                          {{"stage", std::string(stage)}, {"tokens", std::to_string(tokens)}});
}

absl::Status Unimplemented(std::string_view method_or_field) {
  return base::WithReason(absl::UnimplementedError(base::StrCat(method_or_field, ": is not implemented yet")),
                          "UNIMPLEMENTED", {{"name", std::string(method_or_field)}});
}

}  // namespace nibble::rpc
