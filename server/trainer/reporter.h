// Sends journal lines to the server as the trainer writes them, and receives the server's commands. After a reconnect,
// sends unacknowledged lines again.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/jobs/attempt.h"

namespace nibble::trainer {

// Thread-safe. The journal on disk is authoritative: the server also reads it, so a lost report loses no line. Send
// never waits for the server.
class Reporter {
 public:
  struct Options {
    std::string address;  // "" disables reports
    std::string job_id;
    std::int64_t attempt = 0;
    std::string token;                            // proves to the server that this process is the attempt's trainer
    std::string ca;                               // PEM bundle to check the server's certificate with; "": without TLS
    absl::Duration heartbeat = absl::Seconds(2);  // time without a message after which a heartbeat asks for commands
    // Limit of the lines in memory, in bytes. Above it the oldest are dropped, and the server reads them from the disk.
    std::size_t max_queued_bytes = 8u << 20;
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
  // The last stop that the server has commanded: kCancel, kCancelKeeping or kPause.
  std::optional<jobs::Control> stop() const;
  // Asks the server for its present command, and waits for the answer, for at most `timeout`. If there is no
  // connection, returns at once.
  void Ask(absl::Duration timeout);
  // Id of the last checkpoint that the server has requested; "": none.
  std::string checkpoint_request() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::trainer
