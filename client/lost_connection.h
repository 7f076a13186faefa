// When a watch reconnects; private to the client's .cc files.
#pragma once
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace nibble::client {

// Whether the connection was lost. A stream that loses its transport may also end with UNKNOWN, and a call that a
// draining server cuts off with CANCELLED, both without a reason.
bool IsLost(const absl::Status& status);

// The pauses of one watch, and when it gives up (ClientOptions).
class Reconnect {
 public:
  explicit Reconnect(const ClientOptions& options) : options_(options), wait_(options.first_wait) {}

  // The connection works, or works again.
  void Works();
  // Sleeps before the next try. `lost`: why the connection was lost; OK if it was not. `reached`: whether any message
  // has ever arrived. Returns `lost` once the watch must give up.
  absl::Status Pause(const absl::Status& lost, bool reached);

 private:
  const ClientOptions& options_;
  absl::Time lost_since_ = absl::InfiniteFuture();
  int attempts_ = 0;  // before the first message
  absl::Duration wait_;
};

}  // namespace nibble::client
