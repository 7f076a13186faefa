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
#include "server/jobs/event.h"
#include "server/jobs/job_query.h"
#include "server/jobs/job_state.h"
#include "server/jobs/policy.h"
#include "server/jobs/stored_job.h"

namespace nibble::jobs {

// An event to append. The database assigns its sequence within the job.
struct NewEvent {
  std::int64_t attempt = 0;
  std::optional<std::int64_t> attempt_sequence;  // of a journal line; not set for the server's own events
  absl::Time time;
  std::string type;
  base::Json fields;  // without sequence, time, type, attempt
};
NewEvent ServerEvent(std::int64_t attempt, absl::Time time, const EventBody& body);

// A fenced change of one job: applied as a whole, and only if the job is still in `from` and at `attempt`.
struct Transition {
  std::string job_id;
  JobState from = JobState::kQueued;
  JobState to = JobState::kQueued;
  std::int64_t attempt = 0;
  bool new_attempt = false;  // starts attempt + 1 and adds its row
  std::string new_attempt_token;
  std::optional<std::int64_t> retries;
  std::optional<std::int64_t> lost_in_row;
  std::optional<JobError> error;
  std::optional<base::Json> progress;
  std::optional<std::int64_t> memory_bytes, disk_bytes;  // as planned
  std::optional<std::string> publish_digest;             // marks the output for publishing
  bool keep_checkpoint = false;                          // for CANCELLING: write a checkpoint first
  std::optional<std::string> attempt_state;              // new state of the attempt's row ("LOST", ...)
  std::optional<absl::Time> started, ended;
  std::vector<NewEvent> events;
};

// Jobs, attempts, events and request ids in one SQLite file: WAL, synchronous=FULL, one connection. A write that
// returned Ok survives a power cut. Every SQL error becomes a Status: Unavailable (locked), ResourceExhausted
// (DISK_FULL), DataLoss (damaged), Internal. Thread-safe; calls wait for each other and for the disk. A long list does
// not block other calls: it is read in pieces, and rows are parsed without the lock.
// Ending jobs frees space, so it must be possible on a full disk: a transition to a final state, CANCELLING or PAUSING,
// the events of a job that is ending, MarkPublished and Delete are retried as long as `make_room` frees space.
class Database {
 public:
  // Frees disk space; false if it could not. Called on any thread; must not call the database. Null: nothing is
  // retried.
  using MakeRoom = std::function<bool()>;
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, MakeRoom make_room = nullptr);
  virtual ~Database() = default;

  // Inserts a new job with its first event, or returns the job that this request_id created before (`created` is
  // false). AlreadyExists (IDEMPOTENCY_CONFLICT) if the body_digest differs. request_id "" is not remembered.
  struct Inserted {
    StoredJob job;
    bool created = false;
  };
  virtual absl::StatusOr<Inserted> Insert(const StoredJob& job, const std::string& request_id,
                                          const std::string& body_digest, const NewEvent& first_event) = 0;
  // The job that a request_id created (body_digest is compared as above); nothing if the id is new. NotFound (JOB) if
  // that job was deleted since.
  virtual absl::StatusOr<std::optional<StoredJob>> FindRequest(const std::string& request_id,
                                                               const std::string& body_digest) = 0;
  virtual absl::Status ForgetRequests(absl::Time before) = 0;

  virtual absl::StatusOr<StoredJob> Get(const std::string& id) = 0;  // NotFound (JOB)
  struct JobPage {
    std::vector<StoredJob> jobs;  // newest first
    std::int64_t next = 0;        // JobQuery::before for the next page; 0: this is the last one
  };
  // At most `limit` jobs. A page looks at a bounded number of jobs, so it may hold fewer, even none, before the end of
  // the list. Cancelled if `cancel` is cancelled.
  virtual absl::StatusOr<JobPage> List(const JobQuery& query, std::int64_t limit, const base::CancelToken& cancel) = 0;
  // All queued jobs, in no particular order; not_before is not set.
  virtual absl::StatusOr<std::vector<QueuedJob>> Queue() = 0;
  // All jobs in these states, newest first.
  virtual absl::StatusOr<std::vector<StoredJob>> ListAll(const std::vector<JobState>& states) = 0;
  // Jobs whose output is recorded but not published.
  virtual absl::StatusOr<std::vector<StoredJob>> ListUnpublished() = 0;
  // Ids of all jobs.
  virtual absl::StatusOr<std::set<std::string>> Ids() = 0;
  virtual absl::StatusOr<std::int64_t> Count(JobState state) = 0;
  virtual absl::StatusOr<std::int64_t> CountOpen(const std::string& owner, const std::string& tenant) = 0;  // not final
  struct JobCount {
    std::string method;
    JobState state = JobState::kQueued;
    std::int64_t count = 0;
  };
  virtual absl::StatusOr<std::vector<JobCount>> Counts() = 0;  // only counts above 0
  // Deletes a final job and its rows; CollectEvents removes the rest of a long log. The etag is checked in the same
  // transaction: Aborted (ETAG_MISMATCH).
  virtual absl::Status Delete(const std::string& id, const IfEtag& etag) = 0;
  // For retention; each call removes a bounded number of rows. True: there may be more.
  virtual absl::StatusOr<bool> CollectEvents(std::int64_t limit) = 0;                 // of deleted jobs
  virtual absl::StatusOr<bool> ThinSteps(std::int64_t keep, std::int64_t limit) = 0;  // database_retention.h
  // Ids of jobs that ended before `before` and can be deleted, oldest first.
  virtual absl::StatusOr<std::vector<std::string>> EndedBefore(absl::Time before, std::int64_t limit) = 0;

  // False if the job is no longer in `from` and at `attempt`: the writer is fenced off. Internal if there is no such
  // edge.
  virtual absl::StatusOr<bool> Apply(const Transition& transition) = 0;
  // `handle`: as in runner.h.
  virtual absl::Status RecordTrainer(const std::string& id, std::int64_t attempt, const std::string& handle,
                                     const std::optional<OomCount>& oom) = 0;
  // False if the job was marked before.
  virtual absl::StatusOr<bool> MarkPublished(const std::string& id, const std::vector<NewEvent>& events) = 0;
  virtual absl::StatusOr<StoredAttempt> GetAttempt(const std::string& id, std::int64_t attempt) = 0;

  // Appends events and stores the progress that they lead to (may be null). Skips journal lines that are already there.
  // Returns the appended events.
  virtual absl::StatusOr<std::vector<Event>> Append(const std::string& id, const std::vector<NewEvent>& events,
                                                    const base::Json* progress) = 0;
  // Appends only if the job still has the state and attempt of `seen`; otherwise returns false and appends nothing.
  virtual absl::StatusOr<bool> AppendWhile(const StoredJob& seen, const std::vector<NewEvent>& events) = 0;
  // Events with sequence > after, in order, at most `limit`. NotFound (JOB), also if the job was deleted since the
  // caller saw it.
  virtual absl::StatusOr<std::vector<Event>> Events(const std::string& id, std::int64_t after, std::int64_t limit) = 0;
  // Events with sequence < before, newest first, at most `limit`. NotFound (JOB) as in Events.
  virtual absl::StatusOr<std::vector<Event>> EventsBefore(const std::string& id, std::int64_t before,
                                                          std::int64_t limit) = 0;
  struct LogEnd {
    std::int64_t last_sequence = 0;
    bool complete = false;  // no event will follow
  };
  virtual absl::StatusOr<LogEnd> EndOfLog(const std::string& id) = 0;  // NotFound (JOB)
  virtual absl::StatusOr<std::int64_t> LastAttemptSequence(const std::string& id, std::int64_t attempt) = 0;
};

}  // namespace nibble::jobs
