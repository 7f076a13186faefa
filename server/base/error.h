// Machine-readable reasons attached to absl::Status. The gRPC layer sends them as google.rpc.ErrorInfo
// (docs/errors.md).
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nibble::base {

// The status with `reason` ("NO_TRAINABLE_TOKENS") and optional metadata attached.
absl::Status WithReason(absl::Status status, std::string_view reason,
                        const std::map<std::string, std::string>& metadata = {});
// The reason attached, or "" when there is none.
std::string Reason(const absl::Status& status);
std::map<std::string, std::string> ReasonMetadata(const absl::Status& status);

// Adds metadata["name"], the object in the wrong state, to a FailedPrecondition without one. Returns any other status
// unchanged.
absl::Status About(const absl::Status& status, std::string_view name);

// InvalidArgument (FIELD_VIOLATION) about one field of a request. metadata["field"] holds the field's path.
absl::Status FieldError(std::string_view field, std::string_view message);

}  // namespace nibble::base
