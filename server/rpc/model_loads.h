// Calls that need a model which is not in memory. They wait without a thread, those of one model for one load: what a load may take,
// minutes, nobody else waits for.
#pragma once
#include <grpcpp/alarm.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/rpc/request_owner.h"
#include "server/rpc/stream_slots.h"
#include "server/rpc/unary.h"
#include "server/rpc/worker_pool.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

// Thread-safe.
class ModelLoads {
 public:
  using Loaded = absl::StatusOr<std::shared_ptr<const serve::Resident>>;
  using Then = std::function<void(Loaded)>;
  // NotFound for a name that no model has: that is said at once, whatever is being loaded.
  using Exists = std::function<absl::Status(const std::string& name)>;

  static constexpr std::size_t kMaxWaiting = 256;

  // `workers`: where those who waited go on. One principal may have a quarter of `max_waiting`.
  ModelLoads(serve::ModelManager& models, WorkerPool& workers, base::Clock& clock, Exists exists, std::size_t max_waiting = kMaxWaiting);
  // As Stop. Nobody who might call it is left.
  ~ModelLoads();

  // The model where it is in memory; nullptr otherwise.
  std::shared_ptr<const serve::Resident> Find(const std::string& name) const { return models_.Find(name); }
  // Calls `then` once, on a worker, when the model has been loaded or could not be; what is given back takes that wish back. A load
  // that was begun goes on when nobody waits any more: whoever asks again, as clients with short deadlines do, finds it further on.
  // `principal`: FairnessKey(). Errors: those of `exists`; ResourceExhausted (QUEUE_FULL; metadata "max" for the bound of a principal);
  // Unavailable (DRAINING) after Stop.
  absl::StatusOr<std::uint64_t> Wait(const std::string& name, const std::string& principal, Then then);
  // Waits for the load, asking `cancelled` ten times a second. Errors: those of the load and of Wait; Cancelled.
  Loaded Await(const std::string& name, const std::string& principal, const base::Cancelled& cancelled);
  // False: `then` was called, or will be.
  bool Forget(const std::string& name, std::uint64_t wish);
  // The loads that run are stopped, and have ended when it comes back; who waited is told on the workers. Again, it does nothing.
  void Stop();

  std::size_t num_waiting() const { return static_cast<std::size_t>(places_.open()); }

 private:
  struct Wish {
    std::shared_ptr<const void> place;
    Then then;
  };
  struct Model {
    absl::Duration came;  // its first wish, monotonic
    std::map<std::uint64_t, Wish> wishes;
  };

  // How long one waits: what the last load took, or what one takes that has not ended.
  absl::Duration WaitNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Load(const std::string& name);

  serve::ModelManager& models_;
  WorkerPool& workers_;
  base::Clock& clock_;
  const Exists exists_;
  const int max_waiting_;
  const int max_waiting_of_principal_;
  StreamSlots places_;  // of wishes
  std::atomic<bool> stop_{false};
  mutable base::Mutex mutex_;
  std::uint64_t last_wish_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Model> waiting_ ABSL_GUARDED_BY(mutex_);  // that have a task
  WorkerPool loaders_{2, /*max_waiting=*/0};  // each model is one task at most, always taken. Last: it ends first
};

// One call that waits: ended by the load, a cancel or its deadline, whichever comes first. Thread-safe.
class LoadWait : public std::enable_shared_from_this<LoadWait> {
 public:
  using Watch = std::function<void(const std::shared_ptr<LoadWait>&)>;

  // `then`: called once, in Begin at the earliest; with Cancelled or DeadlineExceeded, stage QUEUE, where the load did not end it.
  LoadWait(ModelLoads& loads, std::string name, const Call& call, absl::Duration deadline, ModelLoads::Then then)
      : loads_(loads),
        name_(std::move(name)),
        principal_(FairnessKey(call.principal())),
        clock_(call.edge().clock),
        deadline_(deadline),
        cancel_(call.cancel()),
        then_(std::move(then)) {}

  // `watch` sees to it that Cancelled is called. `then` may end the call, and is not called before `watch` is done with it.
  void Begin(const Watch& watch);
  void Cancelled();  // or the deadline passed: the transport calls it for both

 private:
  void End(ModelLoads::Loaded loaded);

  ModelLoads& loads_;
  const std::string name_;
  const std::string principal_;
  base::Clock& clock_;
  const absl::Duration deadline_;  // monotonic
  const base::CancelToken cancel_;
  base::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;  // all is set up: what comes may end it
  std::optional<ModelLoads::Loaded> early_ ABSL_GUARDED_BY(mutex_);  // what came before
  std::uint64_t wish_ ABSL_GUARDED_BY(mutex_) = 0;
  ModelLoads::Then then_ ABSL_GUARDED_BY(mutex_);  // empty: it has ended
  grpc::Alarm timer_;
};

// Calls `then` with the model: here and now where it is in memory, else when it has been loaded, or with what ended the wait.
template <typename Watch, typename Then>
void WithModel(ModelLoads& loads, const std::string& name, const Call& call, absl::Duration deadline, const Watch& watch, Then then) {
  if (auto resident = loads.Find(name); resident != nullptr) return then(ModelLoads::Loaded(std::move(resident)));
  std::make_shared<LoadWait>(loads, name, call, deadline, std::move(then))->Begin(watch);
}

template <typename Then>
void WithModel(ModelLoads& loads, const std::string& name, UnaryCall* call, absl::Duration deadline, Then then) {
  const auto watch = [call](const std::shared_ptr<LoadWait>& wait) { call->OnCancelled([wait] { wait->Cancelled(); }); };
  WithModel(loads, name, call->call(), deadline, watch, std::move(then));
}

}  // namespace nibble::rpc
