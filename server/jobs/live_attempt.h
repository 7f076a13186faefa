// State of an attempt in AttemptSupervisor: before it begins, while its trainer lives, and until its end is recorded.
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
#include "server/jobs/runner.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/verdict.h"
#include "server/store/checkpoints.h"

namespace nibble::jobs {

// An attempt that has not begun; its job is still QUEUED.
struct StartingAttempt {
  // The newest good checkpoint, if any, and the damaged ones that were skipped.
  struct Resume {
    std::optional<store::CheckpointInfo> checkpoint;
    std::vector<store::CheckpointInfo> damaged;
  };
  using Found = absl::StatusOr<Resume>;

  StoredJob job;
  std::shared_ptr<const void> memory;
  std::shared_ptr<Deferred<Found>> resume;
};

struct LiveAttempt {
  explicit LiveAttempt(const std::string& directory_in) : directory(directory_in), journal(directory_in) {}
  std::string job_id;
  std::int64_t attempt = 0;
  std::string directory;
  std::string token;
  std::string handle;                  // of the trainer, as recorded in the database; "" before
  std::string waiting_for;             // why the trainer has not begun, as last reported in an event
  absl::Duration warned_waiting;       // time of that event
  std::int64_t memory_bytes = 0;       // as planned
  std::int64_t disk_bytes = 0;         // as planned
  std::shared_ptr<const void> memory;  // share of ControllerOptions::memory
  JournalReader journal;
  std::int64_t last_sequence = 0;
  base::Json progress;
  std::optional<Control> stop;               // requested stop
  std::string checkpoint_request;            // id of a requested checkpoint whose request file still exists; "": none
  std::optional<absl::Duration> terminated;  // when SIGTERM was sent
  bool killed = false;
  bool hung = false;
  bool complained = false;      // the current journal error was logged
  bool unreadable = false;      // the journal is damaged: not read again until the end
  bool warned_damaged = false;  // a warning event reports the damaged journal
  bool adopted = false;         // taken over after a restart: its end may be LOST
  bool ordered = true;          // its order was written: a trainer may have begun
  absl::Duration last_line;     // time of the last journal line or sign of life
  absl::Duration looked;        // time of the last look for a sign of life
  std::string alive;            // the last sign of life
  std::int64_t keep_last = 1;   // run.keep_last
  bool checkpointed = false;    // a new checkpoint exists: those of older attempts may be pruned
};

struct EndedAttempt {
  using Hashed = absl::StatusOr<store::Manifest>;
  struct Finding {
    Verdict verdict;
    std::optional<Outcome> outcome;
    std::string output_digest;  // of the verified output, if the trainer succeeded
  };

  LiveAttempt live;
  TrainerEnd end = {};
  absl::Duration try_at = -absl::InfiniteDuration();  // after a failure: do not try again before this
  Finding finding = {};
  bool examined = false;                                        // the finding is complete but not yet in the database
  std::shared_ptr<Deferred<absl::Status>> collected = nullptr;  // set while its unfinished files are being removed
  std::shared_ptr<Deferred<Hashed>> output = nullptr;           // set while its output is being hashed
};

}  // namespace nibble::jobs
