// gRPC's and google.rpc's statuses as absl::Status, with what the server attached: reason, metadata, field violations.
#pragma once
#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"

namespace nibble::client {

// Reason and metadata are read back by base::Reason and base::ReasonMetadata. Details that cannot be parsed are left
// out; code and message stay.
absl::Status FromGrpc(const grpc::Status& status);
absl::Status FromProto(const google::rpc::Status& status);

struct FieldViolation {
  std::string field;
  std::string description;
};

// From BadRequest; empty when there is none.
std::vector<FieldViolation> Violations(const absl::Status& status);
// From RetryInfo: how long the server asks to wait.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// "INVALID_ARGUMENT"; for people and for scripts that read stderr.
std::string CodeName(absl::StatusCode code);

}  // namespace nibble::client
