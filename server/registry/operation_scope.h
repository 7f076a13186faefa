// The interface of an operation to the work that it runs.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/base/cancel_token.h"

namespace nibble::registry {

// Recorded in the models that an operation makes. Unique within a server.
struct OperationIdentity {
  std::string name;    // "operations/op-..."
  std::string digest;  // of its request
};

// Thread-safe.
class OperationScope {
 public:
  virtual ~OperationScope() = default;
  virtual void Progress(const std::string& stage, std::int64_t done, std::int64_t total) = 0;
  virtual bool cancelled() const = 0;
  // cancelled() as a token, for work that cannot poll. After the deadline, the token is cancelled up to one sweep late
  // (OperationTable::DropOld).
  virtual base::CancelToken cancel() const = 0;
  virtual OperationIdentity identity() const = 0;
  // The response names files that `handle` owns. They are kept for `kept` after the operation's end, or until the
  // operation is forgotten. The request id is forgotten with them, so that a repeated request makes new files.
  virtual void Hold(std::shared_ptr<const void> handle, absl::Duration kept) = 0;
  // cancelled() as a function for code that polls. Must not be called after the scope is destroyed.
  std::function<bool()> stopped() const { return std::bind_front(&OperationScope::cancelled, this); }
};

}  // namespace nibble::registry
