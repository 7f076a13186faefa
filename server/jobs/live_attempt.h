// What AttemptSupervisor knows of an attempt: before it begins, while its trainer lives, and until its end is recorded.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/json.h"
#include "server/jobs/attempt.h"
#include "server/jobs/disk_worker.h"
#include "server/jobs/journal.h"
#include "server/jobs/records.h"
#include "server/jobs/runner.h"
#include "server/jobs/verdict.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

// Of a job that is still QUEUED.
struct StartingAttempt {
  // The newest good checkpoint, if there is one, and those that were passed over for it.
  struct Resume {
    std::optional<store::CheckpointInfo> checkpoint;
    std::vector<store::CheckpointInfo> damaged;
  };
  using Found = absl::StatusOr<Resume>;

  JobRecord job;
  std::shared_ptr<const void> memory;
  std::shared_ptr<Deferred<Found>> resume;
};

struct LiveAttempt {
  explicit LiveAttempt(const std::string& directory_in) : directory(directory_in), journal(directory_in) {}
  std::string job_id;
  std::int64_t attempt = 0;
  std::string directory;
  std::string token;
  std::int64_t memory_bytes = 0;       // as planned
  std::int64_t disk_bytes = 0;         // likewise
  std::shared_ptr<const void> memory;  // taken of ControllerOptions::memory
  JournalReader journal;
  std::int64_t last_sequence = 0;
  base::Json progress;
  std::optional<Control> stop;               // asked for
  std::optional<absl::Duration> terminated;  // when SIGTERM went out
  bool killed = false;
  bool hung = false;
  bool complained = false;     // of what is wrong with the journal now
  bool unreadable = false;     // the journal is damaged: left alone until the end
  bool told_damaged = false;   // the user was, of the journal
  bool adopted = false;        // taken over after a restart: its end may be LOST
  absl::Duration last_line;    // of the journal, or last sign of life
  absl::Duration looked;       // for a sign of life
  std::string alive;           // the last one
  std::int64_t keep_last = 1;  // run.keep_last
  bool checkpointed = false;   // a checkpoint came: older attempts' may go
};

struct EndedAttempt {
  using Hashed = absl::StatusOr<store::Manifest>;
  struct Finding {
    Verdict verdict;
    std::optional<Outcome> outcome;
    std::string output_digest;  // of the verified output, when it succeeded
  };

  LiveAttempt live;
  ExitStatus exit = {};
  absl::Status start_failure = {};
  bool out_of_memory = false;                         // the kernel's OOM killer ended its trainer
  absl::Duration try_at = -absl::InfiniteDuration();  // after a failure: not at every tick
  Finding finding = {};
  bool examined = false;  // the finding is complete: only the database does not have it yet
  std::shared_ptr<Deferred<absl::Status>> collected = nullptr;  // while its unfinished work is being removed
  std::shared_ptr<Deferred<Hashed>> output = nullptr;           // where the trainer says that it succeeded
};

}  // namespace nibble::jobs
