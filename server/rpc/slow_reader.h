// When the reader of a stream is given up.
#pragma once
#include <cstddef>

#include "absl/time/time.h"

namespace nibble::rpc {

// Asked again and again while the reader is behind. Nothing is pushed meanwhile, so more space in its buffer is what it has taken.
class SlowReader {
 public:
  explicit SlowReader(absl::Duration patience) : patience_(patience) {}
  void CaughtUp() { since_ = absl::InfiniteDuration(); }
  // Whether it has taken nothing for `patience`. space: free places in its buffer; now: monotonic.
  bool TooSlow(std::size_t space, absl::Duration now) {
    if (since_ == absl::InfiniteDuration() || space > space_) since_ = now;
    space_ = space;
    return now - since_ >= patience_;
  }

 private:
  const absl::Duration patience_;
  absl::Duration since_ = absl::InfiniteDuration();  // that nothing is taken
  std::size_t space_ = 0;
};

}  // namespace nibble::rpc
