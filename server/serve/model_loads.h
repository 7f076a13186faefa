// Lets calls wait for models that are not in memory. All calls for one model wait for one load. Wait() holds no thread,
// so that a load of several minutes does not delay other calls; Await() blocks its caller.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/mutex.h"
#include "server/base/stream_slots.h"
#include "server/base/worker_pool.h"
#include "server/serve/model_manager.h"

namespace nibble::serve {

// Thread-safe.
class ModelLoads {
 public:
  using Loaded = absl::StatusOr<std::shared_ptr<const Resident>>;
  using Then = std::function<void(Loaded)>;
  // Returns NotFound if no model has the name. Wait() calls it first, so an unknown name fails without waiting.
  using Exists = std::function<absl::Status(const std::string& name)>;

  static constexpr std::size_t kMaxWaiting = 256;

  // `workers` run the callbacks of Wait(). One principal may have a quarter of `max_waiting`.
  ModelLoads(ModelManager& models, base::WorkerPool& workers, base::Clock& clock, Exists exists,
             std::size_t max_waiting = kMaxWaiting);
  // Calls Stop(). No concurrent caller may remain.
  ~ModelLoads();

  // The model if it is in memory, otherwise nullptr.
  std::shared_ptr<const Resident> Find(const std::string& name) const { return models_.Find(name); }
  // Calls `then` once, on a worker, when the load has succeeded or failed. Forget() with the returned id cancels the
  // wait. A load that has begun continues even if no call waits any longer, so that clients that retry with short
  // deadlines make progress. `principal`: FairnessKey(). Errors: those of `exists`; ResourceExhausted (QUEUE_FULL;
  // metadata "max" for the limit of a principal); Unavailable (DRAINING) after Stop.
  absl::StatusOr<std::uint64_t> Wait(const std::string& name, const std::string& principal, Then then);
  // Blocks until the load ends; calls `cancelled` ten times a second. Errors: those of the load and of Wait; Cancelled.
  Loaded Await(const std::string& name, const std::string& principal, const base::Cancelled& cancelled);
  // Cancels a wait. False: `then` was called, or will be.
  bool Forget(const std::string& name, std::uint64_t waiter);
  // Stops the running loads and returns when they have ended; waiting calls fail on the workers. Calling Stop
  // again does nothing.
  void Stop();

  std::size_t num_waiting() const { return static_cast<std::size_t>(places_.open()); }

 private:
  struct Waiter {
    std::shared_ptr<const void> place;
    Then then;
  };
  struct Model {
    absl::Duration came;  // arrival of its first waiter, monotonic
    std::map<std::uint64_t, Waiter> waiters;
  };

  // Estimated wait of a new call: the longest of the last load and the loads in progress.
  absl::Duration WaitNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Load(const std::string& name);

  ModelManager& models_;
  base::WorkerPool& workers_;
  base::Clock& clock_;
  const Exists exists_;
  const int max_waiting_;
  const int max_waiting_of_principal_;
  base::StreamSlots places_;  // one per waiter
  std::atomic<bool> stop_{false};
  mutable base::Mutex mutex_;
  std::uint64_t last_waiter_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Model> waiting_ ABSL_GUARDED_BY(mutex_);  // models with a task of loaders_
  // Run() always accepts; each model has at most one task. Last member: destroyed first.
  base::WorkerPool loaders_{/*num_threads=*/2, /*max_waiting=*/0};
};

}  // namespace nibble::serve
