// The file of an operation below operations/: it answers for the operation after a restart.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/longrunning/operations.pb.h"
#include "server/rpc/request_owner.h"

namespace nibble::rpc {

struct OperationRecord {
  // Replaced as a whole, never changed: a reader copies it without a lock.
  std::shared_ptr<const google::longrunning::Operation> operation;
  RequestOwner owner;
  std::string request_id;  // "": a repeated request does not find the operation
  std::string request_digest;
  absl::Time ended = absl::UnixEpoch();  // where operation.done
  bool holds_files = false;              // the response names files that the server keeps for a while, and not beyond a restart
  bool done_at_once = false;             // there was nothing to run
};

std::string Serialized(const OperationRecord& record);
// `file` is for errors. Errors: InvalidArgument.
absl::StatusOr<OperationRecord> ParseOperationRecord(std::string_view text, std::string_view file);

}  // namespace nibble::rpc
