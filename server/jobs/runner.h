// Where trainers run: as child processes (local_runner.h), or in a cluster.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::jobs {

// How the trainer of an attempt ended.
struct TrainerEnd {
  enum class Cause {
    kExited,       // value: exit code
    kSignaled,     // value: signal
    kUnknown,      // gone, and how it ended is unknown
    kOutOfMemory,  // ended by the kernel's OOM killer
    kNotStarted,   // it could not begin; failure: why
    // Ended by its cluster; detail: the cluster's own words.
    kEvicted,    // its pod was evicted, or its node was drained
    kPreempted,  // its quota was given to another job
    kNodeLost,   // its node does not answer
    kDeleted,    // it was deleted, but not by this server
  };
  Cause cause = Cause::kUnknown;
  int value = 0;
  std::string detail = {};
  absl::Status failure = {};
};

struct TrainerState {
  enum class Phase { kStarting, kRunning, kEnded };
  Phase phase = Phase::kStarting;
  // Identifies the process or the cluster's object; only the runner that made it can read it. "" while unknown.
  std::string handle = {};
  std::string waiting_for = {};  // kStarting: why it has not begun yet, for people; "" if it will begin soon
  TrainerEnd end = {};           // kEnded
};

struct TrainerRequest {
  std::string directory;  // of the attempt; absolute
  std::string job_id = {};
  std::int64_t attempt = 0;
  std::string device = "cpu";  // cpu | cuda
  std::int64_t threads = 1;
  std::int64_t memory_bytes = 0;  // planned peak; 0: not planned
};

// Starts and watches the trainers of attempts. A trainer may outlive this process: a restarted server adopts it. Each
// attempt is identified by its directory. No call waits for a network. One thread.
class Runner {
 public:
  enum class Signal { kTerminate, kKill };

  virtual ~Runner() = default;  // leaves the trainers running

  // Begins to start the trainer of an attempt whose attempt.json is written; Poll says how it goes. Call at most once
  // per attempt.
  virtual void Start(const TrainerRequest& request) = 0;
  // After a restart: takes over the attempt's trainer. `recorded`: its handle in the database ("" if the server died
  // before it recorded one). False if no trainer of the attempt lives; true if it lives, or if only a later Poll can
  // tell. An error if it cannot be determined now.
  virtual absl::StatusOr<bool> Adopt(const TrainerRequest& request, const std::string& recorded) = 0;
  // The state as far as it is known. Once it is kEnded, it stays kEnded, and no process of the attempt is left, except
  // on a node that does not answer (kNodeLost). A process that does not end within seconds after SIGKILL is only
  // logged. kEnded and kUnknown for an attempt that was neither started nor adopted.
  virtual TrainerState Poll(const std::string& attempt_directory) = 0;
  // Signals the trainer and the processes that it started. Does nothing if it is gone.
  virtual void Send(const std::string& attempt_directory, Signal signal) = 0;
  // The end of the attempt is recorded: the runner may remove what it kept of it. Does nothing for an unknown attempt.
  virtual void Forget(const std::string& attempt_directory) = 0;
  // Every attempt of an earlier server has been adopted.
  virtual void Recovered() {}
  // True if trainers continue when a server stops in good order, and the next server adopts them.
  virtual bool outlives_server() const { return false; }
  // Reaps ended orphans, of trainers or others, whose parent is now this process. Never reaps a trainer: Poll returns
  // its end.
  virtual void ReapStrays() {}
};

}  // namespace nibble::jobs
