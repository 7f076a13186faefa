// Ctrl-C ends the program but not its job or operation on the server. Before it ends, the program prints a note.
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

// Makes SIGINT and SIGTERM, unless they are ignored, print the note on stderr before they end the program as usual.
// Call this before any other thread exists. `note` must outlive all threads of the program.
void PrintWhenInterrupted(const InterruptNote& note);

}  // namespace nibble::cli
