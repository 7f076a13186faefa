// Sends journal lines to the server as they are written, and again after a reconnect what it has not acknowledged.
#pragma once
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace nibble::trainer {

// Thread-safe. The journal on disk is the truth; a server that cannot be reached slows nothing down.
class Reporter {
 public:
  struct Options {
    std::string address;  // "": reports to nobody
    std::string job_id;
    std::int64_t attempt = 0;
    std::string token;
  };
  explicit Reporter(Options options);
  ~Reporter();

  void Send(std::string line);  // sequence numbers count from 1
  // Waits until all is acknowledged, at most that long.
  void Flush(absl::Duration timeout);
  // The server said that this attempt is over (FENCED): it must end at once, without writing.
  bool fenced() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::trainer
