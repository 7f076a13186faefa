// Machine-readable reasons on absl::Status: what becomes google.rpc.ErrorInfo at the edge (docs/errors.md).
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

// FailedPrecondition with metadata["name"], whose state is wrong, where the status does not name it; others as they are.
absl::Status About(const absl::Status& status, std::string_view name);

// The commonest: InvalidArgument about one field of a request; its path travels as metadata["field"].
absl::Status FieldError(std::string_view field, std::string_view message);

}  // namespace nibble::base
