#include "server/serve/model_manager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/stored_tensors.h"
#include "server/model/trainer_logprobs.h"

namespace nibble::serve {

ModelManager::ModelManager(Locate locate, EngineOptions options, std::shared_ptr<base::MemoryBudget> memory,
                           kernels::Stream stream, base::Clock& clock, Observer observer)
    : locate_(std::move(locate)),
      options_(std::move(options)),
      memory_(std::move(memory)),
      stream_(stream),
      clock_(clock),
      observer_(std::move(observer)) {}

absl::StatusOr<std::shared_ptr<const Resident>> ModelManager::Acquire(const std::string& name,
                                                                      const Cancelled& cancelled) {
  while (true) {
    std::shared_ptr<Slot> slot;
    {
      base::MutexLock lock(mutex_);
      std::shared_ptr<Slot>& entry = slots_[name];
      if (entry == nullptr) entry = std::make_shared<Slot>();
      if (entry->resident != nullptr) return entry->resident;
      slot = entry;
    }
    base::MutexLock loading(slot->loading);
    {
      base::MutexLock lock(mutex_);
      if (slot->resident != nullptr) return slot->resident;
      if (!slot->failed.ok()) return slot->failed;
      const auto it = slots_.find(name);
      if (it == slots_.end() || it->second != slot) continue;  // unloaded while this call waited
    }
    const absl::StatusOr<Artifact> artifact = locate_(name, cancelled);
    auto resident = artifact.ok() ? Load(name, artifact->directory, cancelled) : artifact.status();
    if (!resident.ok()) resident = base::About(resident.status(), name);
    base::MutexLock lock(mutex_);
    if (resident.ok()) {
      slot->resident = *resident;
      slot->pin = artifact->pin;
    } else {
      slot->failed = resident.status();  // for callers that wait; later calls try again
      slots_.erase(name);
    }
    return resident;
  }
}

// Takes memory for the model's tensors and for its engine's cache.
absl::StatusOr<std::shared_ptr<const void>> ModelManager::TakeMemory(const std::string& name,
                                                                     const std::string& directory) const {
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(directory));
  std::int64_t weights = 0;
  for (const auto& [tensor, view] : artifact->tensors()) {
    // The int8 scales of nf4 weights become f32.
    const bool scales = tensor.ends_with(model::kNf4AbsmaxSuffix) && view.dtype == kernels::DType::kI8;
    weights += static_cast<std::int64_t>(view.bytes.size()) * (scales ? 4 : 1);
  }
  const std::int64_t pages =
      Engine::NumPages(options_, std::min(options_.max_context, artifact->config().context_limit()));
  std::int64_t cache = 0, bytes = 0;
  if (__builtin_mul_overflow(pages, model::KvPool::PageBytes(artifact->config(), artifact->info().kv_dtype), &cache) ||
      __builtin_add_overflow(weights, cache, &bytes)) {
    cache = bytes = std::numeric_limits<std::int64_t>::max();
  }
  if (auto memory = memory_->TryTake(bytes); memory != nullptr) return memory;
  const std::int64_t have = memory_->left();
  return base::WithReason(
      absl::ResourceExhaustedError(
          base::StrCat("model ", name, " needs ", bytes, " bytes, ", have, " are left for models and trainers: unload ",
                       "other models, wait for jobs to end, lower --kv_tokens, or raise --serve_memory_bytes if that ",
                       "is the limit")),
      "OUT_OF_DEVICE_MEMORY",
      {{"need", std::to_string(bytes)},
       {"have", std::to_string(have)},
       {"plan", base::StrCat("weights ", weights, ", kv_cache ", cache)}});
}

absl::StatusOr<std::optional<double>> ModelManager::TrainerDifference(const model::LoadedModel& model,
                                                                      const std::string& directory,
                                                                      const Cancelled& cancelled) const {
  const auto trained = model::ReadTrainerLogprobs(base::RealFileSystem(), directory);
  if (absl::IsNotFound(trained.status())) return std::nullopt;  // made from a checkpoint, or by an older version
  NIBBLE_RETURN_IF_ERROR(trained.status());
  NIBBLE_ASSIGN_OR_RETURN(const double difference, model::MaxLogprobDifference(model, *trained, stream_, cancelled));
  return difference;
}

absl::StatusOr<std::shared_ptr<const Resident>> ModelManager::Load(const std::string& name,
                                                                   const std::string& directory,
                                                                   const Cancelled& cancelled) {
  const absl::Duration began = clock_.Monotonic();
  auto resident = std::make_shared<Resident>();
  resident->name = name;
  NIBBLE_ASSIGN_OR_RETURN(resident->memory, TakeMemory(name, directory));
  NIBBLE_ASSIGN_OR_RETURN(resident->text, model::LoadTextAssets(directory));
  NIBBLE_ASSIGN_OR_RETURN(
      auto loaded,
      model::LoadedModel::Load(directory, {.max_positions = options_.max_context, .cancelled = cancelled}, stream_));
  if (loaded->info().format == model::Format::kLora) {
    NIBBLE_ASSIGN_OR_RETURN(resident->trainer_difference, TrainerDifference(*loaded, directory, cancelled));
  }
  NIBBLE_ASSIGN_OR_RETURN(resident->engine,
                          Engine::Start(std::move(loaded), resident->text.tokenizer, options_, stream_, clock_));
  resident->loaded = clock_.Now();
  if (observer_) observer_(*resident, /*loaded=*/true, clock_.Monotonic() - began);
  return std::shared_ptr<const Resident>(resident);
}

absl::Status ModelManager::Unload(const std::string& name) {
  std::shared_ptr<const Resident> resident;
  {
    base::MutexLock lock(mutex_);
    const auto it = slots_.find(name);
    if (it == slots_.end() || it->second->resident == nullptr) {
      return base::WithReason(absl::FailedPreconditionError(base::StrCat("model ", name, " is not loaded")),
                              "MODEL_NOT_LOADED", {{"name", name}});
    }
    resident = std::exchange(it->second->resident, nullptr);
    it->second->pin.reset();
    slots_.erase(it);
  }
  if (observer_) observer_(*resident, /*loaded=*/false, absl::ZeroDuration());
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const Resident>> ModelManager::residents() const {
  base::MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const Resident>> result;
  for (const auto& [name, slot] : slots_) {
    if (slot->resident != nullptr) result.push_back(slot->resident);
  }
  return result;
}

std::shared_ptr<const Resident> ModelManager::Find(const std::string& name) const {
  base::MutexLock lock(mutex_);
  const auto it = slots_.find(name);
  return it == slots_.end() ? nullptr : it->second->resident;
}

}  // namespace nibble::serve
