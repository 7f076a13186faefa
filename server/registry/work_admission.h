// Admits work that holds its own copies of models in memory: verifications, imports, conversions, publications of
// checkpoints.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"

namespace nibble::registry {

// Peak memory of a piece of work, in bytes.
struct WorkMemory {
  std::int64_t weights = 0;  // of the largest loaded model, or of the tensors held
  std::int64_t kv_cache = 0;
  std::int64_t buffers = 0;    // of a step: activations and logits, or a tensor being quantized
  std::int64_t data = 0;       // results of an evaluation
  std::int64_t total() const;  // the largest int64 if the sum overflows
};

// Runs one piece of work at a time, in the order of arrival, within the memory that served models and trainers share.
// Thread-safe.
class WorkAdmission {
 public:
  using Cancelled = base::Cancelled;
  // The work holds the turn; destroying it admits the next work. It may outlive this object.
  using Turn = std::shared_ptr<const void>;

  explicit WorkAdmission(std::shared_ptr<base::MemoryBudget> memory)
      : memory_(std::move(memory)), queue_(std::make_shared<Queue>()) {}

  // Waits for earlier work, calling `cancelled` ten times a second, then takes the memory. Does not wait for models to
  // be unloaded or for jobs to end. `what`: name for the error, such as "verify of model m". `waiting` is called once
  // if it has to wait. Errors: ResourceExhausted (OUT_OF_DEVICE_MEMORY; metadata need, have: bytes; plan), at once if
  // the work can never fit; Cancelled.
  absl::StatusOr<Turn> Await(const std::string& what, const WorkMemory& need, const Cancelled& cancelled,
                             const std::function<void()>& waiting = {});
  std::size_t num_waiting() const;

 private:
  struct Queue {
    base::Mutex mutex;
    base::Condition changed;
    std::uint64_t last ABSL_GUARDED_BY(mutex) = 0;
    std::set<std::uint64_t> tickets ABSL_GUARDED_BY(mutex);  // the smallest has the turn
    void Leave(std::uint64_t ticket);
  };

  const std::shared_ptr<base::MemoryBudget> memory_;
  const std::shared_ptr<Queue> queue_;
};

}  // namespace nibble::registry
