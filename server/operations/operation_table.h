// Work that outlives its call: imports, conversions, exports, loads, verifications, plans and publications of
// checkpoints. The API shows it as google.longrunning operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/auth/request_owner.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/mutex.h"
#include "server/base/worker_pool.h"
#include "server/operations/operation.h"
#include "server/operations/operation_index.h"
#include "server/registry/operation_scope.h"

namespace nibble::operations {

// Arguments of OperationTable::Start.
struct OperationStart {
  OperationLane lane = OperationLane::kModels;
  std::string model = {};         // model that the operation is about
  std::string kind = {};          // kind of work, such as "import"
  auth::RequestOwner owner = {};  // the caller, who owns request_id
  std::string request_id = {};    // "": no repeated request finds the operation
  std::string digest = {};        // of the request without its id
};

// A caller's rights to operations.
struct OperationViewer {
  std::string tenant = {};                          // "": sees the operations of all tenants
  std::optional<auth::RequestOwner> only_own = {};  // if set: may cancel only operations of this owner
};

// Each operation is recorded in a file of `directory`, so that it survives a restart: its beginning is on the disk
// before Start returns, its end before any caller sees it as done. A failed write is only logged. An operation that a
// restart interrupted ends as done if its model was published, otherwise as ABORTED (SERVER_RESTARTED). An operation is
// forgotten a day after its end, or earlier to keep at most kMaxEndedOfOwner ended operations of its owner: the oldest
// first, but those whose response names files (OperationScope::Hold) last. Get, List, Cancel and OnEnd never wait for
// the disk. Thread-safe.
class OperationTable {
 public:
  // Returns the operation's response, or an error; Cancelled after it has seen scope.cancelled().
  using Body = std::function<absl::StatusOr<OperationResponse>(registry::OperationScope&)>;
  using Done = std::function<void(const Operation&)>;
  // State of an operation at one time. It never changes.
  using Snapshot = std::shared_ptr<const Operation>;
  static constexpr std::size_t kMaxEndedOfOwner = OperationIndex::kMaxEndedOfOwner;
  // Limit for operations that were done at once, because the caller passed their response to Start.
  static constexpr std::size_t kMaxDoneAtOnceOfOwner = OperationIndex::kMaxDoneAtOnceOfOwner;
  // Returns the response of an operation that made `model` before the server was killed; nullopt if it had not made the
  // model yet. Returns an error if this cannot be determined.
  using Recover = std::function<absl::StatusOr<std::optional<OperationResponse>>(
      const registry::OperationIdentity& operation, const std::string& model)>;

  // `deadline`: maximum run time of each operation; after it the operation is cancelled and ends as DeadlineExceeded.
  // Open calls `recover` for each operation that had not ended; empty: no operation had made a model. `parse_v1` reads
  // files of version 1 (rpc::ParseOperationV1); empty: they are removed, as all files that cannot be read.
  static absl::StatusOr<std::unique_ptr<OperationTable>> Open(base::FileSystem& files, base::Clock& clock,
                                                              const std::string& directory,
                                                              absl::Duration deadline = absl::InfiniteDuration(),
                                                              const Recover& recover = {},
                                                              const OperationParser& parse_v1 = {});
  // Cancels the running operations and waits for them. An operation that neither ended nor was cancelled by a caller
  // ends as ABORTED.
  ~OperationTable();
  // Maximum number of unfinished operations of one principal; 0: no limit. Call this before the first Start.
  void set_max_of_owner(std::int64_t max) { max_of_owner_ = max; }

  // The owner's operation with this request_id, or nullopt. Waits until its beginning is on the disk. Errors:
  // AlreadyExists (IDEMPOTENCY_CONFLICT): a different request began it.
  absl::StatusOr<std::optional<Operation>> Find(const OperationStart& start);
  // Queues `body` in its lane, or returns the operation that Find returns. With `response` nothing runs: the operation
  // is done at once. Errors: InvalidArgument (FIELD_VIOLATION), those of Find, ResourceExhausted (QUEUE_FULL; with
  // metadata "flag" and "max" for the limit of a principal).
  absl::StatusOr<Operation> Start(const OperationStart& start, Body body,
                                  std::optional<OperationResponse> response = {});
  // Errors, here and below: NotFound (OPERATION), also for an operation that the viewer may not see.
  absl::StatusOr<Operation> Get(const std::string& name, const OperationViewer& viewer = {}) const;
  // The first `max` operations, sorted by name, whose names come after `after`.
  std::vector<Snapshot> List(const OperationViewer& viewer = {}, const std::string& after = "",
                             std::size_t max = std::numeric_limits<std::size_t>::max()) const;
  // Best effort; OK if the operation has ended. An operation that still waits in its lane ends at once. Errors:
  // PermissionDenied (ROLE): with `only_own`, an operation of another owner.
  absl::Status Cancel(const std::string& name, const OperationViewer& viewer = {});
  // Deletes an ended operation and its files. Errors: FailedPrecondition (ILLEGAL_STATE): it has not ended.
  absl::Status Delete(const std::string& name, const OperationViewer& viewer = {});
  // Forgets operations that ended a day ago and files that have expired. Cancels operations whose deadline has passed.
  void DropOld();
  // Calls `done` when the operation has ended: at once if it already has, otherwise from the thread that ends it.
  // ForgetOnEnd with the returned handle cancels the callback; 0: `done` was called already.
  absl::StatusOr<std::uint64_t> OnEnd(const std::string& name, Done done, const OperationViewer& viewer = {});
  void ForgetOnEnd(const std::string& name, std::uint64_t handle);
  // Estimate of the time until an operation of the lane ends.
  absl::Duration RetryAfter(OperationLane lane) const;
  // Number of OnEnd callbacks that were neither called nor cancelled.
  std::size_t num_waiting() const;

 private:
  using Entry = OperationIndex::Entry;
  class Scope;
  class Garbage;
  struct Lane {
    int num_busy = 0;               // workers that run its operations
    std::size_t num_beginning = 0;  // operations that will be in `queue` once their beginning is recorded
    std::deque<Entry> queue;
    std::vector<Entry> running;
    absl::Duration mean_run;  // mean run time of recent operations
  };
  static constexpr int kWidths[] = {1, 2, 2, 8};  // maximum number of running operations, by lane
  static constexpr std::size_t kNumLanes = std::size(kWidths);
  static constexpr std::size_t kMaxWaiting = 64;  // per lane
  OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory, absl::Duration deadline);
  absl::Status Load(const Recover& recover, const OperationParser& parse_v1);
  void EndAfterRestart(OperationEntry& entry, const Recover& recover);
  // These two wait for the disk, so the mutex must not be held.
  void Save(const StoredOperation& stored);
  void End(const Entry& entry, absl::StatusOr<OperationResponse> result);  // requires state kRunning or kEnding
  void Enqueue(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunLane(std::size_t lane);
  // The next operation for a free worker of a lane with `width` workers: the oldest of the owner with the fewest
  // running operations. Each owner may run `width` - 1 operations, but at least one; unnamed callers have no limit.
  // Returns the end of the queue if the queue is empty, or if no owner in it may run another. The caller holds mutex_.
  static std::deque<Entry>::iterator NextOf(Lane& lane, int width);
  // Finds an operation that the viewer may see. Errors: NotFound (OPERATION).
  absl::StatusOr<Entry> Seen(const std::string& name, const OperationViewer& viewer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const std::string& name) const;
  void Forget(const Entry& entry, Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOld(Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Entry> FindRequest(const OperationStart& start, base::MutexLock& lock)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration UntilNextEnd(OperationLane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  base::Clock& clock_;
  const std::string directory_;
  const absl::Duration deadline_;
  std::int64_t max_of_owner_ = 0;
  mutable base::Mutex mutex_;
  base::Condition recorded_;  // notified when an operation has left kBeginning
  OperationIndex index_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Lane lanes_[kNumLanes] ABSL_GUARDED_BY(mutex_);
  base::WorkerPool enders_{1, 0};  // records the ends of operations that were cancelled in their queue
  // Last: destroyed first.
  base::WorkerPool workers_[kNumLanes]{{kWidths[0], 0}, {kWidths[1], 0}, {kWidths[2], 0}, {kWidths[3], 0}};
};

}  // namespace nibble::operations
