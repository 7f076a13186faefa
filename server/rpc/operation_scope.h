// The interface of an operation to the work that it runs.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "server/base/cancel_token.h"

namespace nibble::rpc {

// Stands in what an operation makes. No two operations of a server have the same.
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
  // The same as a token; late by up to a sweep (DropOld) where the deadline has passed.
  virtual base::CancelToken cancel() const = 0;
  virtual OperationIdentity identity() const = 0;
  // The response names files that `handle` owns. They are kept for `kept` after the operation's end, and go sooner with the
  // operation itself; its request id goes with them, so that a repeated request makes them anew.
  virtual void Hold(std::shared_ptr<const void> handle, absl::Duration kept) = 0;
  // The same for what asks by itself; used while the scope lives.
  std::function<bool()> stopped() const { return std::bind_front(&OperationScope::cancelled, this); }
};

}  // namespace nibble::rpc
