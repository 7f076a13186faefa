#pragma once
#include <functional>

#include "absl/status/status.h"

namespace nibble::base {

// Long work calls this before every layer, tensor or MiB, and stops with Cancelled once it returns true. Empty: the
// work cannot be cancelled. Each call also shows that the work makes progress.
using Cancelled = std::function<bool()>;

inline absl::Status CheckCancelled(const Cancelled& cancelled) {
  return cancelled && cancelled() ? absl::CancelledError("cancelled") : absl::OkStatus();
}

}  // namespace nibble::base
