// Keeps models in memory, each with its engine: loads them on first use, unloads them on request.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/model/text_assets.h"
#include "server/serve/engine.h"

namespace nibble::serve {

// A model in memory. It is freed when the last handle is dropped, so requests that run when it is unloaded finish
// first.
struct Resident {
  std::string name;
  absl::Time loaded;
  // Largest difference between an adapter's logprobs and those that its trainer stored (model::MaxLogprobDifference).
  // Unset for other models, and without stored logprobs.
  std::optional<double> trainer_difference;
  std::shared_ptr<const void> memory;  // share of the budget; returned after the engine is destroyed
  model::TextAssets text;
  std::unique_ptr<Engine> engine;
};

// Thread-safe.
class ModelManager {
 public:
  struct Artifact {
    std::string directory;
    std::shared_ptr<const void> pin;  // held until the model is unloaded, so that its artifact is not deleted
  };
  // Checked before each piece of a large read; true ends the work with Cancelled. Empty: the work cannot be cancelled.
  using Cancelled = base::Cancelled;
  // Finds the artifact of a name; called before a load, not for a model in memory. Errors: NotFound (no such name),
  // DataLoss (damaged artifact).
  using Locate = std::function<absl::StatusOr<Artifact>(const std::string& name, const Cancelled& cancelled)>;
  // Called when a model was loaded (with the load time) or unloaded; for metrics.
  using Observer = std::function<void(const Resident& resident, bool loaded, absl::Duration took)>;

  // memory: shared by all models and trainers.
  ModelManager(Locate locate, EngineOptions options, std::shared_ptr<base::MemoryBudget> memory, kernels::Stream stream,
               base::Clock& clock, Observer observer);

  // Returns the resident of that name; loads it first if necessary. Concurrent callers share one load, or its failure.
  // Errors: ResourceExhausted (OUT_OF_DEVICE_MEMORY; metadata need, have: bytes; plan) if the budget has less than the
  // planned memory; those of Locate, model::LoadTextAssets and model::LoadedModel::Load; Cancelled. `cancelled` applies
  // to a load that this call starts.
  absl::StatusOr<std::shared_ptr<const Resident>> Acquire(const std::string& name, const Cancelled& cancelled = {});
  // Returns the resident if it is in memory, nullptr otherwise. Never waits for a load.
  std::shared_ptr<const Resident> Find(const std::string& name) const;
  // FailedPrecondition (MODEL_NOT_LOADED) when the model is not in memory.
  absl::Status Unload(const std::string& name);
  std::vector<std::shared_ptr<const Resident>> residents() const;
  const EngineTotals& totals() const { return *options_.totals; }
  bool IsLoaded(const std::string& name) const { return Find(name) != nullptr; }

 private:
  struct Slot {
    base::Mutex loading;  // held while the model is read
    // Guarded by mutex_.
    std::shared_ptr<const Resident> resident;
    std::shared_ptr<const void> pin;
    absl::Status failed;
  };

  absl::StatusOr<std::shared_ptr<const void>> TakeMemory(const std::string& name, const std::string& directory) const;
  absl::StatusOr<std::optional<double>> TrainerDifference(const model::LoadedModel& model, const std::string& directory,
                                                          const Cancelled& cancelled) const;
  absl::StatusOr<std::shared_ptr<const Resident>> Load(const std::string& name, const std::string& directory,
                                                       const Cancelled& cancelled);

  const Locate locate_;
  const EngineOptions options_;
  const std::shared_ptr<base::MemoryBudget> memory_;
  const kernels::Stream stream_;
  base::Clock& clock_;
  const Observer observer_;
  mutable base::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::serve
