// Work that outlives its call, as google.longrunning operations: imports, conversions, exports, loads, verifications, plans and
// publications of checkpoints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/longrunning/operations.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/cancel_token.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/mutex.h"
#include "server/rpc/request_owner.h"
#include "server/rpc/worker_pool.h"

namespace nibble::rpc {

// Stands in what an operation makes. No two operations of a server have the same.
struct OperationIdentity {
  std::string name;    // "operations/op-..."
  std::string digest;  // of its request
};

// What a running operation sees. Thread-safe.
class OperationScope {
 public:
  virtual ~OperationScope() = default;
  virtual void Progress(const std::string& stage, std::int64_t done, std::int64_t total) = 0;
  virtual bool cancelled() const = 0;
  // The same as a token; late by up to a sweep (DropOld) where the deadline has passed.
  virtual base::CancelToken cancel() const = 0;
  virtual OperationIdentity identity() const = 0;
  // The response names files that `handle` owns. They are kept for `kept` after the operation's end, and go sooner with the
  // operation itself; its request id goes with them, so that a repeated request makes them anew.
  virtual void Hold(std::shared_ptr<const void> handle, absl::Duration kept) = 0;
  // The same for what asks by itself; used while the scope lives.
  std::function<bool()> stopped() const { return std::bind_front(&OperationScope::cancelled, this); }
};

// Operations of one lane wait for each other. Imports, conversions and exports are heavy and run one at a time; verifications and
// publications of checkpoints read whole models; plans tokenise; loads wait for the threads of ModelLoads.
enum class OperationLane { kModels, kReaders, kPlans, kLoads };

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

// Each operation has a file in `directory`, so that it can be asked for after a restart too. An operation that a restart cut
// off ends as done where what it made is there, else as ABORTED. Operations are forgotten a day after their end, or when their owner
// has ended kMaxEndedOfOwner others since. Thread-safe.
class OperationTable {
 public:
  // The message that the operation's response holds, or why there is none; Cancelled once it has seen scope.cancelled().
  using Body = std::function<absl::StatusOr<google::protobuf::Any>(OperationScope&)>;
  using Done = std::function<void(const google::longrunning::Operation&)>;
  static constexpr std::size_t kMaxEndedOfOwner = 1000;
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
  // Cancels what runs and waits for it.
  ~OperationTable();
  // Operations that one principal may have that have not ended; 0: no bound. Before the first Start.
  void set_max_of_owner(std::int64_t max) { max_of_owner_ = max; }

  // The operation that this owner began with this request_id; nothing when there is none. Errors: AlreadyExists
  // (IDEMPOTENCY_CONFLICT) when its digest was another.
  absl::StatusOr<std::optional<google::longrunning::Operation>> Find(const OperationStart& start);
  // Runs `body` after those before it in its lane; or answers as Find. With `response` there is nothing to run: the operation has
  // ended. Errors: InvalidArgument (FIELD_VIOLATION), those of Find, ResourceExhausted (QUEUE_FULL; of the bound of a principal with
  // metadata "flag" and "max").
  absl::StatusOr<google::longrunning::Operation> Start(const OperationStart& start, Body body,
                                                       std::optional<google::protobuf::Any> response = {});
  // NotFound (OPERATION) for one that the viewer does not see, here and below.
  absl::StatusOr<google::longrunning::Operation> Get(const std::string& name, const OperationViewer& viewer = {}) const;
  std::vector<google::longrunning::Operation> List(const OperationViewer& viewer = {}) const;  // by name
  // Best effort; fine when it has ended. PermissionDenied (ROLE) for another's with `only_own`.
  absl::Status Cancel(const std::string& name, const OperationViewer& viewer = {});
  // Of an operation that has ended, with the files that it holds. FailedPrecondition (ILLEGAL_STATE) while it runs.
  absl::Status Delete(const std::string& name, const OperationViewer& viewer = {});
  // Forgets the operations that ended a day ago, and the files whose time has passed; cancels those whose deadline has passed.
  void DropOld();
  // Calls `done` when it has ended: at once where it has, else from the thread that ends it. The handle given back takes the
  // wish back; 0: it was called already.
  absl::StatusOr<std::uint64_t> OnEnd(const std::string& name, Done done, const OperationViewer& viewer = {});
  void ForgetOnEnd(const std::string& name, std::uint64_t handle);
  // Wishes of OnEnd that are neither met nor taken back.
  std::size_t num_waiting() const;

 private:
  struct Entry;
  class Scope;
  static constexpr std::size_t kNumLanes = 4;
  static constexpr std::size_t kMaxWaiting = 64;  // of a lane
  OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory, absl::Duration deadline);
  absl::Status Load(const Recover& recover);
  void EndAfterRestart(Entry& entry, const Recover& recover) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Save(const Entry& entry);
  void Run(const std::shared_ptr<Entry>& entry, Body body);
  absl::StatusOr<std::shared_ptr<Entry>> Seen(const std::string& name, const OperationViewer& viewer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where this owner has ended too many. What the operation held is given back, to be dropped after the lock.
  std::shared_ptr<const void> DropOldestOf(const RequestOwner& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const std::string& name) const;
  // The handles are to be dropped after the lock: they remove files.
  std::vector<std::shared_ptr<const void>> TakeOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const Entry*> FindEntry(const OperationStart& start) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration UntilNextEnd(OperationLane lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  base::Clock& clock_;
  const std::string directory_;
  const absl::Duration deadline_;
  std::int64_t max_of_owner_ = 0;
  mutable base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  // By lane.
  absl::Duration mean_run_[kNumLanes] ABSL_GUARDED_BY(mutex_);                      // of the operations that ended lately
  std::multiset<absl::Duration> running_since_[kNumLanes] ABSL_GUARDED_BY(mutex_);  // monotonic; of those that run
  WorkerPool workers_[kNumLanes]{{1, kMaxWaiting}, {2, kMaxWaiting}, {2, kMaxWaiting}, {8, kMaxWaiting}};  // last: they end first
};

}  // namespace nibble::rpc
