// Sends journal lines to the server as they are written. After a reconnect, sends unacknowledged lines again.
#pragma once
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace nibble::trainer {

// Thread-safe. The journal on disk is authoritative; an unreachable server does not slow the trainer down.
class Reporter {
 public:
  struct Options {
    std::string address;  // "" disables reports
    std::string job_id;
    std::int64_t attempt = 0;
    std::string token;
  };
  explicit Reporter(Options options);
  ~Reporter();

  void Send(std::string line);  // sequence numbers count from 1
  // Waits until all lines are acknowledged, for at most `timeout`.
  void Flush(absl::Duration timeout);
  // Whether the server said that this attempt is over (FENCED). The attempt must then end at once, without writing.
  bool fenced() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::trainer
