// Work that outlives its call, as google.longrunning operations: imports, conversions, exports, loads, verifications, plans and
// publications of checkpoints.
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
#include "google/longrunning/operations.pb.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/mutex.h"
#include "server/rpc/operation_index.h"
#include "server/rpc/operation_scope.h"
#include "server/rpc/request_owner.h"
#include "server/rpc/worker_pool.h"

namespace nibble::rpc {

// What an operation is begun with.
struct OperationStart {
  OperationLane lane = OperationLane::kModels;
  std::string model = {};       // that it is about
  RequestOwner owner = {};      // whose request_id it is
  std::string request_id = {};  // "": the operation cannot be found by it
  std::string digest = {};      // of the request without its id
};

// Who asks for operations.
struct OperationViewer {
  std::string tenant = {};                      // "": sees those of all tenants
  std::optional<RequestOwner> only_own = {};    // set: may cancel those of this owner alone
};

// Each operation is recorded in a file of `directory`, so that a restart keeps it: its beginning is on the disk before Start returns, its
// end before any caller sees it as done. An operation that a restart interrupted ends as done if its model was published, otherwise as
// ABORTED (SERVER_RESTARTED). Operations are forgotten a day after their end, or when their owner has ended kMaxEndedOfOwner
// others since: first those that hold no files. Get, List, Cancel and OnEnd never wait for the disk. Thread-safe.
class OperationTable {
 public:
  // The message that the operation's response holds, or why there is none; Cancelled once it has seen scope.cancelled().
  using Body = std::function<absl::StatusOr<google::protobuf::Any>(OperationScope&)>;
  using Done = std::function<void(const google::longrunning::Operation&)>;
  // As it was at one time; it never changes.
  using Snapshot = std::shared_ptr<const google::longrunning::Operation>;
  static constexpr std::size_t kMaxEndedOfOwner = OperationIndex::kMaxEndedOfOwner;
  // Of those that Start was given a response of.
  static constexpr std::size_t kMaxDoneAtOnceOfOwner = OperationIndex::kMaxDoneAtOnceOfOwner;
  // The response of an operation that made `model` before the server was killed; nothing where it had not made it yet. Errors: it
  // cannot be determined.
  using Recover = std::function<absl::StatusOr<std::optional<google::protobuf::Any>>(const OperationIdentity& operation,
                                                                                    const std::string& model)>;

  // `deadline`: of each, from its beginning. One that is still running then is cancelled, and ends as DeadlineExceeded. `recover`
  // is asked here, of each operation that had not ended; empty: none had made anything.
  static absl::StatusOr<std::unique_ptr<OperationTable>> Open(base::FileSystem& files, base::Clock& clock,
                                                              const std::string& directory,
                                                              absl::Duration deadline = absl::InfiniteDuration(),
                                                              const Recover& recover = {});
  // Cancels what runs and waits for it. What had not ended then, and was not cancelled before, ends as ABORTED.
  ~OperationTable();
  // Operations that one principal may have that have not ended; 0: no bound. Before the first Start.
  void set_max_of_owner(std::int64_t max) { max_of_owner_ = max; }

  // The owner's operation with this request_id, or nothing. Waits until its beginning is on the disk. Errors: AlreadyExists
  // (IDEMPOTENCY_CONFLICT) if it was begun by another request.
  absl::StatusOr<std::optional<google::longrunning::Operation>> Find(const OperationStart& start);
  // Runs `body` after those before it in its lane; or answers as Find. With `response` there is nothing to run: the operation has
  // ended. Errors: InvalidArgument (FIELD_VIOLATION), those of Find, ResourceExhausted (QUEUE_FULL; of the bound of a principal with
  // metadata "flag" and "max").
  absl::StatusOr<google::longrunning::Operation> Start(const OperationStart& start, Body body,
                                                       std::optional<google::protobuf::Any> response = {});
  // NotFound (OPERATION) for one that the viewer does not see, here and below.
  absl::StatusOr<google::longrunning::Operation> Get(const std::string& name, const OperationViewer& viewer = {}) const;
  // The first `max` by name whose names come after `after`.
  std::vector<Snapshot> List(const OperationViewer& viewer = {}, const std::string& after = "",
                             std::size_t max = std::numeric_limits<std::size_t>::max()) const;
  // Best effort; fine when it has ended. What still waits in its lane ends now. PermissionDenied (ROLE) for another's with `only_own`.
  absl::Status Cancel(const std::string& name, const OperationViewer& viewer = {});
  // Of an operation that has ended, with the files that it holds. FailedPrecondition (ILLEGAL_STATE) while it runs.
  absl::Status Delete(const std::string& name, const OperationViewer& viewer = {});
  // Forgets the operations that ended a day ago, and the files whose time has passed; cancels those whose deadline has passed.
  void DropOld();
  // Calls `done` when it has ended: at once where it has, else from the thread that ends it. The handle given back takes the
  // wish back; 0: it was called already.
  absl::StatusOr<std::uint64_t> OnEnd(const std::string& name, Done done, const OperationViewer& viewer = {});
  void ForgetOnEnd(const std::string& name, std::uint64_t handle);
  // Estimate of the time until an operation of the lane ends.
  absl::Duration RetryAfter(OperationLane lane) const;
  // Wishes of OnEnd that are neither met nor taken back.
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
    absl::Duration mean_run;  // of the operations that ended lately
  };
  static constexpr int kWidths[] = {1, 2, 2, 8};  // operations that run at once, by lane
  static constexpr std::size_t kNumLanes = std::size(kWidths);
  static constexpr std::size_t kMaxWaiting = 64;  // of a lane
  OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory, absl::Duration deadline);
  absl::Status Load(const Recover& recover);
  void EndAfterRestart(OperationEntry& entry, const Recover& recover);
  // These two wait for the disk: without the mutex.
  void Save(const OperationRecord& record);
  void End(const Entry& entry, absl::StatusOr<google::protobuf::Any> result);  // of a state kRunning or kEnding
  void Enqueue(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunLane(std::size_t lane);
  // The next operation for a free worker of a lane of `width` workers: the oldest of the owner with the fewest running operations.
  // Returns the end of the queue when the queue is empty, or when its owners already run as many as they may: all workers of the lane
  // but one, at least one. The caller holds mutex_.
  static std::deque<Entry>::iterator NextOf(Lane& lane, int width);
  absl::StatusOr<Entry> Seen(const std::string& name, const OperationViewer& viewer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const std::string& name) const;
  void Forget(const Entry& entry, Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOld(Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Entry> FindRequest(const OperationStart& start, base::MutexLock& lock) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration UntilNextEnd(OperationLane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  base::Clock& clock_;
  const std::string directory_;
  const absl::Duration deadline_;
  std::int64_t max_of_owner_ = 0;
  mutable base::Mutex mutex_;
  base::Condition recorded_;  // the beginning of an operation
  OperationIndex index_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Lane lanes_[kNumLanes] ABSL_GUARDED_BY(mutex_);
  WorkerPool enders_{1, 0};  // records the ends of operations that were cancelled in their queue
  WorkerPool workers_[kNumLanes]{{kWidths[0], 0}, {kWidths[1], 0}, {kWidths[2], 0}, {kWidths[3], 0}};  // last: they end first
};

}  // namespace nibble::rpc
