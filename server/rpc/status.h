// Converts absl::Status to gRPC's: code, message, and google.rpc details in grpc-status-details-bin (docs/errors.md).
// Only auth/auth_processor.cc also makes gRPC statuses, which have no details.
#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace nibble::rpc {

inline constexpr char kErrorDomain[] = "nibble";

// Details: always ErrorInfo; BadRequest if the status names fields; ResourceInfo for NotFound and AlreadyExists
// (metadata `kind`, or the reason in lower case, and `name`); QuotaFailure for ResourceExhausted; PreconditionFailure
// for FailedPrecondition; RetryInfo if a retry can help. Texts are cut to fit the 8 KiB of metadata that clients
// accept.
google::rpc::Status ToRpcStatus(const absl::Status& status);
grpc::Status ToGrpcStatus(const absl::Status& status);

// The canonical name of a code, such as "INVALID_ARGUMENT", as metrics and ErrorInfo spell it.
const char* CodeName(absl::StatusCode code);

// Makes a text valid for a proto `string`: invalid UTF-8 becomes U+FFFD. Cuts it to max_bytes, between characters.
std::string ToUtf8(std::string_view text, std::size_t max_bytes = std::string_view::npos);

// `text` as a client may see it: absolute paths are cut to their last part, memory addresses become "0x...".
std::string WithoutInternals(std::string_view text);

// StoppedAt adds to Cancelled and DeadlineExceeded how far the call was: metadata `stage`, one of these constants, and
// `tokens` (generated so far). It returns other statuses unchanged.
inline constexpr char kStageQueue[] = "QUEUE";      // work had not begun: waiting for a worker, load, slot or operation
inline constexpr char kStagePrefill[] = "PREFILL";  // processing the prompt
inline constexpr char kStageDecode[] = "DECODE";    // generating tokens
absl::Status StoppedAt(const absl::Status& status, std::string_view stage, std::int64_t tokens);

// Unimplemented. The message and the metadata name the method or field.
absl::Status Unimplemented(std::string_view method_or_field);

}  // namespace nibble::rpc
