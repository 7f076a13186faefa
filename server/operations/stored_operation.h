// The file of an operation below operations/, from which the server answers for the operation after a restart.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth/request_owner.h"
#include "server/operations/operation.h"

namespace nibble::operations {

struct StoredOperation {
  // Replaced as a whole and never modified, so that a reader can copy it without a lock.
  std::shared_ptr<const Operation> operation;
  auth::RequestOwner owner;
  std::string request_id;  // "": a repeated request does not find the operation
  std::string request_digest;
  absl::Time ended = absl::UnixEpoch();  // valid if operation.done
  bool holds_files = false;              // the response names files that are kept for a while, at most until a restart
  bool done_at_once = false;             // there was nothing to run
};

// Reads the operation of a file of version 1, which holds it as a message of the API. Errors: InvalidArgument.
using OperationParser = std::function<absl::StatusOr<Operation>(std::string_view bytes)>;

// JSON of version 2.
std::string Serialized(const StoredOperation& stored);
// `file`: name for error messages. `parse_v1`: empty: a file of version 1 is an error. Errors: InvalidArgument.
absl::StatusOr<StoredOperation> ParseStoredOperation(std::string_view text, std::string_view file,
                                                     const OperationParser& parse_v1 = {});

}  // namespace nibble::operations
