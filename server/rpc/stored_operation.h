// The file of an operation below operations/, from which the server answers for the operation after a restart.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/longrunning/operations.pb.h"
#include "server/auth/request_owner.h"

namespace nibble::rpc {

struct StoredOperation {
  // Replaced as a whole and never modified, so that a reader can copy it without a lock.
  std::shared_ptr<const google::longrunning::Operation> operation;
  auth::RequestOwner owner;
  std::string request_id;  // "": a repeated request does not find the operation
  std::string request_digest;
  absl::Time ended = absl::UnixEpoch();  // valid if operation.done
  bool holds_files = false;              // the response names files that are kept for a while, at most until a restart
  bool done_at_once = false;             // there was nothing to run
};

std::string Serialized(const StoredOperation& record);
// `file`: name for error messages. Errors: InvalidArgument.
absl::StatusOr<StoredOperation> ParseStoredOperation(std::string_view text, std::string_view file);

}  // namespace nibble::rpc
