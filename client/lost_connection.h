// When a watch reconnects; private to the client's .cc files.
#pragma once
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/base/error.h"

namespace nibble::client {

// Maximum pause between two attempts, so that a watch continues soon after a restart of the server.
inline constexpr absl::Duration kLongestPause = absl::Seconds(1);

// Whether the connection was lost. A stream that loses its transport may also end with UNKNOWN, and a call that a
// draining server cuts off with CANCELLED, both without a reason.
inline bool IsLost(const absl::Status& status) {
  const bool cut_off = absl::IsUnknown(status) || absl::IsCancelled(status);
  return absl::IsUnavailable(status) || (cut_off && base::Reason(status).empty());
}

}  // namespace nibble::client
