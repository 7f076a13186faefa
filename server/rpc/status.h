// The one place where absl::Status becomes gRPC's: code, message, and google.rpc details in grpc-status-details-bin (docs/errors.md).
#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace nibble::rpc {

inline constexpr char kErrorDomain[] = "nibble";

// ErrorInfo always; BadRequest where fields are named; ResourceInfo for what is not found or taken (metadata `kind`,
// or the reason in lower case, and `name`); QuotaFailure for what is
// exhausted; PreconditionFailure for a wrong state; RetryInfo where a retry helps. Texts are cut so that all fits the 8 KiB of
// metadata that clients accept.
google::rpc::Status ToRpcStatus(const absl::Status& status);
grpc::Status ToGrpcStatus(const absl::Status& status);

// "INVALID_ARGUMENT": the canonical names, as metrics and ErrorInfo spell them.
const char* CodeName(absl::StatusCode code);

// Bytes that are no UTF-8 become U+FFFD; at most max_bytes, on a character's boundary. What goes into a proto `string`.
std::string ToUtf8(std::string_view text, std::size_t max_bytes = std::string_view::npos);

// `text` as a client may see it: of an absolute path the last part alone, of an address in memory nothing.
std::string WithoutInternals(std::string_view text);

// How far a call was that its client or its deadline ended: metadata `stage` and `tokens` (made until then). Other statuses are
// left as they are.
inline constexpr char kStageQueue[] = "QUEUE";      // nothing was begun: it waited for a worker, a load, a slot or an operation
inline constexpr char kStagePrefill[] = "PREFILL";  // its prompt was being read
inline constexpr char kStageDecode[] = "DECODE";    // tokens were being made
absl::Status StoppedAt(const absl::Status& status, std::string_view stage, std::int64_t tokens);

// Unimplemented, with the method or field named in the message and in the metadata.
absl::Status NotBuilt(std::string_view method_or_field);

}  // namespace nibble::rpc
