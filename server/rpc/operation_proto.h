// Translates operations to and from google.longrunning.
#pragma once
#include <string_view>

#include "absl/status/statusor.h"
#include "google/longrunning/operations.pb.h"
#include "server/operations/operation.h"

namespace nibble::rpc {

google::longrunning::Operation ToProto(const operations::Operation& operation);

// For files of version 1 (operations::OperationParser). `bytes`: a serialized google.longrunning.Operation. ToProto
// gives the same message again, except that it always sets metadata. Errors: InvalidArgument.
absl::StatusOr<operations::Operation> ParseOperationV1(std::string_view bytes);

}  // namespace nibble::rpc
