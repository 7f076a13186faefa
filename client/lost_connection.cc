#include "client/lost_connection.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "client/status.h"
#include "server/base/error.h"

namespace nibble::client {

namespace {

// Maximum pause between two attempts, so that a watch continues soon after a restart of the server.
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

bool IsLost(const absl::Status& status) {
  const bool cut_off = absl::IsUnknown(status) || absl::IsCancelled(status);
  return absl::IsUnavailable(status) || (cut_off && base::Reason(status).empty());
}

void Reconnect::Works() {
  lost_since_ = absl::InfiniteFuture();
  wait_ = options_.first_wait;
}

absl::Status Reconnect::Pause(const absl::Status& lost, bool reached) {
  if (!reached && !lost.ok() && ++attempts_ >= options_.attempts) return lost;
  const absl::Time now = absl::Now();
  if (reached && !lost.ok() && lost_since_ == absl::InfiniteFuture() && options_.on_lost) options_.on_lost(lost);
  lost_since_ = std::min(lost_since_, now);
  if (now - lost_since_ > options_.reconnect_for) return lost;
  const absl::Duration longest = std::min(options_.longest_wait, kLongestPause);
  absl::SleepFor(std::min(RetryDelay(lost).value_or(wait_), longest));
  wait_ = std::min(wait_ * 2, longest);
  return absl::OkStatus();
}

}  // namespace nibble::client
