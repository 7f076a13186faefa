#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::rpc {

// How many streams of one kind are open, and may be. Thread-safe.
class StreamSlots {
 public:
  // `flag` sets the maximum.
  StreamSlots(const char* flag, int max) : state_(std::make_shared<State>()), flag_(flag), max_(max) {}

  void set_max(int max) { max_ = max; }  // before the first Take()
  // A place, given back when the last copy is dropped. ResourceExhausted (STREAMS_FULL, metadata "flag" and "max").
  absl::StatusOr<std::shared_ptr<const void>> Take() {
    base::MutexLock lock(state_->mutex);
    if (state_->open >= max_) {
      return base::WithReason(absl::ResourceExhaustedError(base::StrCat("as many such streams are open as ", flag_, " allows")),
                              "STREAMS_FULL", {{"flag", flag_}, {"max", std::to_string(max_)}});
    }
    ++state_->open;
    return std::shared_ptr<const void>(state_.get(), [state = state_](const void*) {
      base::MutexLock again(state->mutex);
      --state->open;
    });
  }
  int open() const {
    base::MutexLock lock(state_->mutex);
    return state_->open;
  }

 private:
  struct State {
    base::Mutex mutex;
    int open ABSL_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<State> state_;
  const char* const flag_;
  int max_;
};

}  // namespace nibble::rpc
