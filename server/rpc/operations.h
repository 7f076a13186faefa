// Work that outlives its call: imports, conversions, exports, as google.longrunning operations.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "google/longrunning/operations.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/cancel_token.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/mutex.h"
#include "server/rpc/worker_pool.h"

namespace nibble::rpc {

// What a running operation sees. Thread-safe.
class OperationScope {
 public:
  virtual ~OperationScope() = default;
  virtual void Progress(const std::string& stage, std::int64_t done, std::int64_t total) = 0;
  virtual bool cancelled() const = 0;
  // The same for what asks by itself; used while the scope lives.
  std::function<bool()> stopped() const {
    return [this] { return cancelled(); };
  }
};

// Each operation has a file in `directory`, so that one that ended is answered after a restart too, and one that a restart cut
// is told as ABORTED. Those that ended more than a day ago are dropped. Thread-safe.
class OperationTable {
 public:
  // The message that the operation's response holds, or why there is none; Cancelled once it has seen scope.cancelled().
  using Body = std::function<absl::StatusOr<google::protobuf::Any>(OperationScope&)>;
  using Done = std::function<void(const google::longrunning::Operation&)>;

  // `deadline`: of each, from its beginning. One that is still running then is cancelled, and ends as DeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<OperationTable>> Open(base::FileSystem& files, base::Clock& clock,
                                                              const std::string& directory,
                                                              absl::Duration deadline = absl::InfiniteDuration());
  // Cancels what runs and waits for it.
  ~OperationTable();

  // Runs `body` after those before it, one at a time. The same request_id with the same digest answers the operation that it
  // began; with another, AlreadyExists (IDEMPOTENCY_CONFLICT). ResourceExhausted (QUEUE_FULL).
  absl::StatusOr<google::longrunning::Operation> Start(const std::string& model, const std::string& request_id,
                                                       const std::string& request_digest, Body body);
  // Whether an operation was begun with this id.
  bool Knows(const std::string& request_id) const;
  absl::StatusOr<google::longrunning::Operation> Get(const std::string& name) const;  // NotFound (OPERATION)
  std::vector<google::longrunning::Operation> List() const;                           // by name
  absl::Status Cancel(const std::string& name);  // best effort; fine when it has ended
  absl::Status Delete(const std::string& name);  // one that has ended: FailedPrecondition (ILLEGAL_STATE) otherwise
  // Calls `done` when it has ended: at once where it has, else from the thread that ends it. The handle given back takes the
  // wish back; 0: it was called already.
  absl::StatusOr<std::uint64_t> OnEnd(const std::string& name, Done done);
  void ForgetOnEnd(const std::string& name, std::uint64_t handle);
  // Wishes of OnEnd that are neither met nor taken back.
  std::size_t num_waiting() const;

 private:
  struct Entry;
  class Scope;
  OperationTable(base::FileSystem& files, base::Clock& clock, std::string directory, absl::Duration deadline);
  absl::Status Load();
  void Save(const Entry& entry);
  void Run(const std::shared_ptr<Entry>& entry, const Body& body);
  absl::Duration UntilNextEnd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  base::Clock& clock_;
  const std::string directory_;
  const absl::Duration deadline_;
  mutable base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_handle_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Duration mean_run_ ABSL_GUARDED_BY(mutex_);                     // of the operations that ended lately
  std::optional<absl::Duration> running_since_ ABSL_GUARDED_BY(mutex_);  // monotonic; of the one that runs
  WorkerPool worker_;  // one thread: what is heavy is done one after the other. Last: it ends first
};

}  // namespace nibble::rpc
