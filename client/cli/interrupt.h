// Ctrl-C ends the program, and what it had asked for goes on at the server: that is said first.
#pragma once
#include <string>

#include "server/base/mutex.h"

namespace nibble::cli {

// Thread-safe.
class InterruptNote {
 public:
  void Set(std::string text);
  std::string Get() const;

 private:
  mutable base::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// From now on SIGINT and SIGTERM, unless they are ignored, print the note on stderr and then end the program as they would have.
// Before any other thread is made. `note` outlives the program's threads.
void PrintWhenInterrupted(const InterruptNote& note);

}  // namespace nibble::cli
