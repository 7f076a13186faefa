#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/cancel_token.h"
#include "server/base/json.h"
#include "server/jobs/job_query.h"
#include "server/jobs/job_state.h"
#include "server/jobs/policy.h"
#include "server/jobs/records.h"
#include "server/jobs/runner.h"

namespace nibble::jobs {

// An event to append. The database gives it its job-level sequence.
struct NewEvent {
  std::int64_t attempt = 0;
  std::optional<std::int64_t> attempt_sequence;  // of a journal line; nothing for the server's own
  absl::Time time;
  std::string type;
  base::Json fields;  // without sequence, time, type, attempt
};

// A fenced change of one job: made only if the job is still in `from` and at `attempt`, all of it or nothing.
struct Transition {
  std::string job_id;
  JobState from = JobState::kQueued;
  JobState to = JobState::kQueued;
  std::int64_t attempt = 0;
  bool new_attempt = false;                     // attempt + 1, with its row
  std::string new_attempt_token;
  std::optional<std::int64_t> retries;
  std::optional<std::int64_t> lost_in_row;
  std::optional<JobError> error;
  std::optional<base::Json> progress;
  std::optional<std::int64_t> memory_bytes, disk_bytes;  // as planned
  std::optional<std::string> publish_digest;    // marks the output for publishing
  bool keep_checkpoint = false;                 // to CANCELLING: a checkpoint first
  std::optional<std::string> attempt_state;     // of the attempt's own row ("LOST", ...)
  std::optional<absl::Time> started, ended;
  std::vector<NewEvent> events;
};

// Jobs, attempts, events and request ids in one SQLite file: WAL, synchronous=FULL, one connection. What returned
// Ok survives a power cut. Every SQL error is a Status: Unavailable (locked), ResourceExhausted (DISK_FULL), DataLoss
// (damaged), Internal. Thread-safe; calls wait for each other and for the disk. No call keeps the others waiting for the length of a
// list: lists are read in pieces, and rows are parsed after their turn.
// Ends are what frees room, so a full disk must not keep them out: a transition to a final state, to CANCELLING or PAUSING, the
// events of a job on its way there, MarkPublished and Delete are tried again as long as `make_room` made some.
class Database {
 public:
  // False when none could be made. Called by any thread; it may not call the database. None: nothing is tried again.
  using MakeRoom = std::function<bool()>;
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, MakeRoom make_room = nullptr);
  virtual ~Database() = default;

  // A new job with its first event, or the one that this request_id made before: `created` tells. With another
  // body_digest: AlreadyExists (IDEMPOTENCY_CONFLICT). request_id "" is not remembered.
  struct Inserted {
    JobRecord job;
    bool created = false;
  };
  virtual absl::StatusOr<Inserted> Insert(const JobRecord& job, const std::string& request_id,
                                          const std::string& body_digest, const NewEvent& first_event) = 0;
  // The job that a request_id made (body_digest is compared as above); nothing when the id is new.
  // NotFound (JOB) when that job was deleted since.
  virtual absl::StatusOr<std::optional<JobRecord>> FindRequest(const std::string& request_id,
                                                               const std::string& body_digest) = 0;
  virtual absl::Status ForgetRequests(absl::Time before) = 0;

  virtual absl::StatusOr<JobRecord> Get(const std::string& id) = 0;  // NotFound (JOB)
  struct JobPage {
    std::vector<JobRecord> jobs;  // newest first
    std::int64_t next = 0;        // JobQuery::before of the page behind; 0: there is none
  };
  // At most `limit` jobs. A page looks at a bounded number of jobs, so it may hold fewer, even none, before the end of the list.
  // Cancelled when `cancel` is.
  virtual absl::StatusOr<JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel) = 0;
  // All queued jobs, in no particular order; not_before is not set.
  virtual absl::StatusOr<std::vector<QueuedJob>> Queue() = 0;
  // All jobs in these states, newest first.
  virtual absl::StatusOr<std::vector<JobRecord>> ListAll(const std::vector<JobState>& states) = 0;
  // Those whose output is recorded but not published.
  virtual absl::StatusOr<std::vector<JobRecord>> ListUnpublished() = 0;
  // Ids of all jobs.
  virtual absl::StatusOr<std::set<std::string>> Ids() = 0;
  virtual absl::StatusOr<std::int64_t> Count(JobState state) = 0;
  virtual absl::StatusOr<std::int64_t> CountOpen(const std::string& owner, const std::string& tenant) = 0;  // not final yet
  struct JobCount {
    std::string method;
    JobState state = JobState::kQueued;
    std::int64_t count = 0;
  };
  virtual absl::StatusOr<std::vector<JobCount>> Counts() = 0;  // those above 0
  // A final job, with all its rows; of a long log the rest is left to CollectEvents. Its etag is looked at in the same transaction:
  // Aborted (ETAG_MISMATCH).
  virtual absl::Status Delete(const std::string& id, const IfEtag& etag) = 0;
  // For retention; each call removes a bounded number of rows. True: there may be more.
  virtual absl::StatusOr<bool> CollectEvents(std::int64_t limit) = 0;                              // of deleted jobs
  virtual absl::StatusOr<bool> ThinSteps(std::int64_t keep, std::int64_t limit) = 0;               // database_retention.h
  // Ids of jobs that ended before and can be deleted, the oldest first.
  virtual absl::StatusOr<std::vector<std::string>> EndedBefore(absl::Time before, std::int64_t limit) = 0;

  // False when the job was not there any more: the writer is fenced off. The edge itself must exist (Internal otherwise).
  virtual absl::StatusOr<bool> Apply(const Transition& transition) = 0;
  virtual absl::Status RecordProcess(const std::string& id, std::int64_t attempt, const ProcessId& process,
                                     const std::optional<OomCount>& oom) = 0;
  // False when it was said before.
  virtual absl::StatusOr<bool> MarkPublished(const std::string& id, const std::vector<NewEvent>& events) = 0;
  virtual absl::StatusOr<AttemptRecord> GetAttempt(const std::string& id, std::int64_t attempt) = 0;

  // Appends events and the progress they lead to. A journal line that is there already is skipped. Returns those appended.
  virtual absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                                    const base::Json* progress) = 0;
  // Appends only while the job is in the state and at the attempt of `seen`; false otherwise, and nothing is appended.
  virtual absl::StatusOr<bool> AppendWhile(const JobRecord& seen, const std::vector<NewEvent>& events) = 0;
  // With sequence > after, in order, at most `limit`. NotFound (JOB): also where it has been deleted since the caller saw it.
  virtual absl::StatusOr<std::vector<Event>> Events(const std::string& id, std::int64_t after, std::int64_t limit) = 0;
  struct LogEnd {
    std::int64_t last_sequence = 0;
    bool complete = false;  // no event will follow
  };
  virtual absl::StatusOr<LogEnd> EndOfLog(const std::string& id) = 0;  // NotFound (JOB)
  virtual absl::StatusOr<std::int64_t> LastAttemptSequence(const std::string& id, std::int64_t attempt) = 0;
};

}  // namespace nibble::jobs
