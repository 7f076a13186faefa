#include "server/store/model_store.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/file_names.h"

namespace nibble::store {

using base::JoinPath;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxInfoBytes = 1u << 20;

}  // namespace

ModelStore::ModelStore(base::FileSystem& files, StatePaths paths, std::uint64_t min_free_bytes)
    : files_(files),
      paths_(std::move(paths)),
      min_free_bytes_(min_free_bytes),
      names_(std::make_shared<NameTable>("model", "MODEL")) {}

absl::StatusOr<std::unique_ptr<ModelStore>> ModelStore::Open(base::FileSystem& files, const StatePaths& paths,
                                                             std::uint64_t min_free_bytes) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.models()));
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, paths.models()));
  std::unique_ptr<ModelStore> store(new ModelStore(files, paths, min_free_bytes));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(paths.models()));
  base::MutexLock lock(store->mutex_);
  for (const std::string& name : names) {
    if (const absl::Status named = base::CheckName("name", name); !named.ok()) {
      base::LogWarning("ignored an entry with an invalid name in models/",
                       {{"name", name}, {"why", std::string(named.message())}});
      continue;
    }
    auto model = store->Load(name, paths.model(name));
    if (!model.ok()) {
      base::LogError("cannot read a model", {{"name", name}, {"why", std::string(model.status().message())}});
    }
    store->models_.emplace(name, model.ok() ? *std::move(model) : store->Unread(name));
  }
  return store;
}

std::string Etag(const StoredModel& model) { return model.manifest_digest.substr(0, 16); }

StoredModel ModelStore::Unread(const std::string& name) const {
  StoredModel model;
  model.name = name;
  model.directory = paths_.model(name);
  model.damaged = true;
  return model;
}

absl::StatusOr<StoredModel> ModelStore::Load(const std::string& name, const std::string& directory) const {
  StoredModel model;
  model.name = name;
  model.directory = directory;
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, CheckSizes(files_, model.directory));
  model.manifest_digest = manifest.digest;
  model.bytes = manifest.total_bytes();
  model.created = ModifiedTime(JoinPath(model.directory, kManifestFile));
  const std::string info = JoinPath(model.directory, model::kInfoFile);
  if (files_.Exists(info)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, files_.Read(info, kMaxInfoBytes));
    NIBBLE_ASSIGN_OR_RETURN(model.info, base::ParseJson(text));
  }
  return model;
}

std::vector<StoredModel> ModelStore::List() const {
  base::MutexLock lock(mutex_);
  std::vector<StoredModel> all;
  for (const auto& [name, model] : models_) {
    if (model.damaged) Find(name).status().IgnoreError();
    all.push_back(model);
  }
  return all;
}

// Re-reads a damaged entry: its files may have been restored, or may be readable now.
absl::StatusOr<StoredModel> ModelStore::Find(std::string_view name) const {
  const auto it = models_.find(name);
  if (it == models_.end()) return names_->NotFound(name);
  if (it->second.damaged) {
    auto model = Load(it->first, it->second.directory);
    if (!model.ok()) return SaysDamaged(model.status()) ? names_->Damaged(name) : model.status();
    it->second = *std::move(model);
  }
  return it->second;
}

absl::StatusOr<StoredModel> ModelStore::Get(std::string_view name) const {
  base::MutexLock lock(mutex_);
  return Find(name);
}

absl::Status ModelStore::CheckFree(std::string_view name, const JobTenant& viewer) const {
  base::MutexLock lock(mutex_);
  return models_.contains(name) ? names_->Taken(name) : names_->CheckNotOfAJob(name, viewer);
}

absl::StatusOr<Manifest> ModelStore::Verify(std::string_view name, const Cancelled& cancelled) const {
  NIBBLE_ASSIGN_OR_RETURN(const StoredModel model, Get(name));
  return store::Verify(files_, model.directory, cancelled);
}

absl::Status ModelStore::Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  base::MutexLock lock(mutex_);
  if (models_.contains(name)) return names_->Taken(name);
  return names_->Reserve(name, owner, tenant, tenant);
}

void ModelStore::Unreserve(std::string_view name, std::string_view owner) { names_->Unreserve(name, owner); }

absl::Status ModelStore::Publish(std::string_view name, std::string_view owner, const std::string& directory,
                                 const std::string& manifest_digest, const JobTenant& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  base::MutexLock lock(mutex_);
  const std::string target = paths_.model(name);
  if (models_.contains(name)) {
    NIBBLE_ASSIGN_OR_RETURN(const StoredModel model, Find(name));
    if (model.manifest_digest != manifest_digest) return names_->Taken(name);
    // The server that moved it may have been killed before it synced.
    NIBBLE_RETURN_IF_ERROR(files_.SyncDirectory(paths_.models()));
    names_->Unreserve(name, owner);
    return absl::OkStatus();
  }
  // An earlier call may have moved the output, and the model may have been deleted since. Then `owner` no longer holds
  // the reservation, and the output is missing (checked below).
  NIBBLE_RETURN_IF_ERROR(names_->Reserve(name, owner, tenant, tenant));
  // Load it before the move: after the rename only the syncs can fail.
  auto model = Load(std::string(name), directory);
  // True if an earlier call failed after its rename.
  const bool moved = absl::IsNotFound(model.status()) && !files_.Exists(directory) && files_.Exists(target);
  if (moved) model = Load(std::string(name), target);
  if (absl::IsNotFound(model.status())) return absl::DataLossError(StrCat(directory, " no longer exists"));
  if (!model.ok()) return SaysDamaged(model.status()) ? absl::DataLossError(model.status().message()) : model.status();
  if (model->manifest_digest != manifest_digest) {
    return absl::DataLossError(StrCat(directory, " is not the output that the job recorded"));
  }
  NIBBLE_RETURN_IF_ERROR(moved ? SyncMoved(files_, directory, target) : MovePublished(files_, directory, target));
  model->directory = target;
  models_.emplace(name, *std::move(model));
  names_->Unreserve(name, owner);
  return absl::OkStatus();
}

ModelStore::Pending::Pending(ModelStore& store, std::string name, std::string owner, PendingDirectory directory)
    : store_(store), name_(std::move(name)), owner_(std::move(owner)), directory_(std::move(directory)) {}

ModelStore::Pending::~Pending() { store_.names_->Unreserve(name_, owner_); }

absl::StatusOr<std::unique_ptr<ModelStore::Pending>> ModelStore::Begin(std::string_view name, const JobTenant& viewer) {
  NIBBLE_RETURN_IF_ERROR(base::CheckSpace(files_, paths_.root(), min_free_bytes_));
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  const std::string owner = base::NewId("import");
  {
    base::MutexLock lock(mutex_);
    if (models_.contains(name)) return names_->Taken(name);
    NIBBLE_RETURN_IF_ERROR(names_->Reserve(name, owner, std::nullopt, viewer));
  }
  auto directory = PendingDirectory::Create(files_, paths_.model(name));
  if (!directory.ok()) {
    names_->Unreserve(name, owner);
    return directory.status();
  }
  return std::unique_ptr<Pending>(new Pending(*this, std::string(name), owner, *std::move(directory)));
}

absl::StatusOr<StoredModel> ModelStore::Pending::Commit(const Cancelled& cancelled,
                                                        const base::WrittenDigests& written) {
  // Not under the store's mutex, because hashing takes seconds. The reservation keeps the name.
  NIBBLE_RETURN_IF_ERROR(directory_.Commit(cancelled, written).status());
  base::MutexLock lock(store_.mutex_);
  // It exists, even if it cannot be read right now.
  store_.models_.emplace(name_, store_.Unread(name_));
  store_.names_->Unreserve(name_, owner_);
  return store_.Find(name_);
}

absl::StatusOr<std::shared_ptr<const Pin>> ModelStore::PinModel(std::string_view name, std::string_view user,
                                                                const JobTenant& tenant) {
  base::MutexLock lock(mutex_);
  if (!models_.contains(name)) return names_->NotFound(name);
  return names_->AddPin(name, user, tenant);
}

absl::Status ModelStore::Delete(std::string_view name, const std::optional<std::string>& etag,
                                const std::string& tenant) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string hidden, Hide(name, etag, tenant));
  RemoveHidden(files_, hidden);  // without the lock: it takes seconds for a large model
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelStore::Hide(std::string_view name, const std::optional<std::string>& etag,
                                             const std::string& tenant) {
  base::MutexLock lock(mutex_);
  const auto it = models_.find(name);
  if (it == models_.end()) return names_->NotFound(name);
  if (etag.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(const StoredModel model, Find(name));
    NIBBLE_RETURN_IF_ERROR(names_->CheckEtag(Etag(model), etag));
  }
  NIBBLE_RETURN_IF_ERROR(names_->CheckUnused(name, tenant));
  auto hidden = HidePublished(files_, it->second.directory);
  // The directory may have been removed by hand, or by a deletion that failed after its rename.
  if (!hidden.ok() && !absl::IsNotFound(hidden.status())) return hidden.status();
  models_.erase(it);
  return hidden.ok() ? *std::move(hidden) : std::string();
}

}  // namespace nibble::store
