#include "server/jobs/oom_watch.h"

#include <utility>

namespace nibble::jobs {

namespace {

// For this long after a kill was counted, the end of a process may claim it: a large process ends only after the kernel
// has freed its memory, which takes time.
constexpr absl::Duration kClaimable = absl::Seconds(10);

}  // namespace

OomWatch::OomWatch(ReadOomCount read) : read_(std::move(read)) {
  if (read_) count_ = read_();
}

void OomWatch::Look(absl::Duration now) {
  if (!read_) return;
  std::optional<OomCount> count = read_();
  if (unclaimed_ > 0 && now - seen_ > kClaimable) unclaimed_ = 0;
  if (count.has_value() && count_.has_value() && count->group == count_->group && count->kills > count_->kills) {
    unclaimed_ += count->kills - count_->kills;
    seen_ = now;
  }
  count_ = std::move(count);
}

bool OomWatch::Claim(absl::Duration now) {
  if (unclaimed_ == 0 || now - seen_ > kClaimable) return false;
  --unclaimed_;
  return true;
}

}  // namespace nibble::jobs
