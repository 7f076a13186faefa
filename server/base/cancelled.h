#pragma once
#include <functional>

#include "absl/status/status.h"

namespace nibble::base {

// Long work calls this often, before every layer, tensor or MiB; true ends the work with Cancelled. Empty: the work runs to its end.
// The calls themselves show that the work makes progress.
using Cancelled = std::function<bool()>;

inline absl::Status CheckCancelled(const Cancelled& cancelled) {
  return cancelled && cancelled() ? absl::CancelledError("cancelled") : absl::OkStatus();
}

}  // namespace nibble::base
