// Which models are in memory, each with its engine: loaded on first use, unloaded when told.
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

// A model in memory. The last handle dropped frees it: requests that run when it is unloaded finish first.
struct Resident {
  std::string name;
  absl::Time loaded;
  std::optional<double> trainer_difference;  // model::MaxLogprobDifference, of an adapter that brought its trainer's logprobs
  std::shared_ptr<const void> memory;  // of the budget; given back after the engine has gone
  model::TextAssets text;
  std::unique_ptr<Engine> engine;
};

// Thread-safe.
class ModelManager {
 public:
  struct Artifact {
    std::string directory;
    std::shared_ptr<const void> pin;  // kept until the model is unloaded: nobody deletes what is in memory, or on its way
  };
  // Asked before each piece that is read of what may be gigabytes: true ends the work with Cancelled. Empty: nobody can.
  using Cancelled = base::Cancelled;
  // Where the artifact of a name lies, asked before a load and not for what is in memory: NotFound for a name that is not there,
  // DataLoss for one that is damaged.
  using Locate = std::function<absl::StatusOr<Artifact>(const std::string& name, const Cancelled& cancelled)>;
  // Told when a model came or went, with its load time; for metrics.
  using Observer = std::function<void(const Resident& resident, bool loaded, absl::Duration took)>;

  // memory: of all models together.
  ModelManager(Locate locate, EngineOptions options, std::shared_ptr<base::MemoryBudget> memory, kernels::Stream stream,
               base::Clock& clock, Observer observer);

  // The resident of that name, loaded now if it is not there. Concurrent callers share one load, or its failure. What it is
  // planned to take must be left of the memory: ResourceExhausted (OUT_OF_DEVICE_MEMORY; metadata need, have: bytes; plan).
  // `cancelled` is that of the caller whose load it is.
  absl::StatusOr<std::shared_ptr<const Resident>> Acquire(const std::string& name, const Cancelled& cancelled = {});
  // The same where it is in memory; nullptr otherwise. Never waits for a load.
  std::shared_ptr<const Resident> Find(const std::string& name) const;
  // FailedPrecondition (MODEL_NOT_LOADED) when it is not there.
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
  absl::StatusOr<std::shared_ptr<const Resident>> Load(const std::string& name, const std::string& directory, const Cancelled& cancelled);

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
