// Converts gRPC and google.rpc statuses to absl::Status with the server's details: reason, metadata, field violations.
#pragma once
#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"

namespace nibble::client {

// Read reason and metadata with base::Reason and base::ReasonMetadata. Malformed details are dropped; code and message
// stay.
absl::Status FromGrpc(const grpc::Status& status);
absl::Status FromProto(const google::rpc::Status& status);

struct FieldViolation {
  std::string field;
  std::string description;
};

// From BadRequest; empty without one.
std::vector<FieldViolation> Violations(const absl::Status& status);
// From RetryInfo: the delay that the server asks for.
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// For example "INVALID_ARGUMENT"; for people, and for scripts that read stderr.
std::string CodeName(absl::StatusCode code);

}  // namespace nibble::client
