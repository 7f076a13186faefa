#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::base {

// Limits the number of open streams, or of other long calls, of one kind. Thread-safe.
class StreamSlots {
 public:
  // `flag` and `flag_each`: names of the flags that set `max` and `max_each`, the limit of one principal. `reason`: the
  // reason of the errors of Take().
  StreamSlots(const char* flag, int max, const char* flag_each = "", int max_each = 0,
              const char* reason = "STREAMS_FULL")
      : state_(std::make_shared<State>()),
        flag_(flag),
        max_(max),
        flag_each_(flag_each),
        max_each_(max_each),
        reason_(reason) {}

  // Call this before the first Take(). max_each 0: no limit per principal.
  void set_max(int max, int max_each = 0) {
    max_ = max;
    max_each_ = max_each;
  }
  // Takes a slot; destroying the last copy of the result returns it. `principal`: FairnessKey(). `retry`: estimated
  // time until a slot is free. Errors: ResourceExhausted (the `reason` of the constructor; metadata "flag", "max" and,
  // with an estimate, "retry_ms").
  absl::StatusOr<std::shared_ptr<const void>> Take(const std::string& principal = "",
                                                   std::optional<absl::Duration> retry = {}) {
    MutexLock lock(state_->mutex);
    if (state_->open >= max_) return Full(flag_, max_, retry);
    if (!principal.empty() && max_each_ > 0 && state_->of[principal] >= max_each_)
      return Full(flag_each_, max_each_, retry);
    ++state_->open;
    ++state_->of[principal];
    return std::shared_ptr<const void>(state_.get(), [state = state_, principal](const void*) {
      MutexLock again(state->mutex);
      --state->open;
      if (--state->of[principal] == 0) state->of.erase(principal);
    });
  }
  int open() const {
    MutexLock lock(state_->mutex);
    return state_->open;
  }

 private:
  struct State {
    Mutex mutex;
    int open ABSL_GUARDED_BY(mutex) = 0;
    std::map<std::string, int> of ABSL_GUARDED_BY(mutex);  // by principal
  };
  absl::Status Full(const char* flag, int max, std::optional<absl::Duration> retry) const {
    std::map<std::string, std::string> metadata = {{"flag", flag}, {"max", std::to_string(max)}};
    if (retry.has_value()) metadata["retry_ms"] = std::to_string(absl::ToInt64Milliseconds(*retry));
    return WithReason(
        absl::ResourceExhaustedError(StrCat("too many calls of this kind are open: ", flag, " allows ", max)), reason_,
        metadata);
  }

  const std::shared_ptr<State> state_;
  const char* const flag_;
  int max_;
  const char* const flag_each_;
  int max_each_;
  const char* const reason_;
};

}  // namespace nibble::base
