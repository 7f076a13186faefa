// An operation as the server keeps it. rpc/operation_proto.h translates it to google.longrunning.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace nibble::operations {

struct OperationMetadata {
  std::string model = {};  // model that the operation is about
  std::string kind = {};   // kind of work: "import", "convert", ...; "" if an older server stored it
  std::string stage = {};
  std::int64_t done = 0;   // finished part of the stage, in units of the stage
  std::int64_t total = 0;  // size of the stage; 0: unknown
  absl::Time created = absl::UnixEpoch();
  bool operator==(const OperationMetadata&) const = default;
};

// A message of the API that rpc makes and reads. Opaque here.
struct OperationResponse {
  std::string type = {};  // type URL of the message
  std::string bytes = {};
  bool operator==(const OperationResponse&) const = default;
};

struct Operation {
  std::string name = {};  // "operations/op-..."
  OperationMetadata metadata = {};
  bool done = false;
  std::optional<OperationResponse> response = {};  // set if it is done and has succeeded
  absl::Status error = {};                         // not OK if it is done and has failed; keeps all payloads
  bool operator==(const Operation&) const = default;
};

}  // namespace nibble::operations
