// Sends journal lines to the server as the trainer writes them. After a reconnect, sends unacknowledged lines again.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace nibble::trainer {

// Thread-safe. The journal on disk is authoritative: the server also reads it, so a lost report loses no line. Send
// never waits for the server.
class Reporter {
 public:
  struct Options {
    std::string address;  // "" disables reports
    std::string job_id;
    std::int64_t attempt = 0;
    std::string token;  // proves to the server that this process is the attempt's trainer
  };
  explicit Reporter(Options options);
  // Drops lines that are not yet acknowledged; call Flush before.
  ~Reporter();

  // Queues a line of the journal. Call it once per line, in order: the server numbers the lines from 1.
  void Send(std::string line);
  // Waits until the server has acknowledged all lines or fenced the attempt, for at most `timeout`.
  void Flush(absl::Duration timeout);
  // True once the server has refused reports because the attempt is over (FENCED). The trainer must then stop at once
  // and write nothing more.
  bool fenced() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::trainer
