#include "server/store/model_store.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/disk_space.h"

namespace nibble::store {

using base::JoinPath;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxInfoBytes = 1u << 20;

}  // namespace

ModelStore::ModelStore(base::FileSystem& files, Layout layout, std::uint64_t min_free_bytes)
    : files_(files), layout_(std::move(layout)), min_free_bytes_(min_free_bytes), names_(std::make_shared<NameTable>("model", "MODEL")) {}

absl::StatusOr<std::unique_ptr<ModelStore>> ModelStore::Open(base::FileSystem& files, const Layout& layout,
                                                             std::uint64_t min_free_bytes) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(layout.models()));
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, layout.models()));
  std::unique_ptr<ModelStore> store(new ModelStore(files, layout, min_free_bytes));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(layout.models()));
  base::MutexLock lock(store->mutex_);
  for (const std::string& name : names) {
    auto model = store->Load(name);
    if (model.ok()) {
      store->models_.emplace(name, *std::move(model));
    } else {
      base::LogWarning("a directory of models/ is left out",
                       {{"name", name}, {"why", std::string(model.status().message())}});
    }
  }
  return store;
}

absl::StatusOr<StoredModel> ModelStore::Load(const std::string& name) const {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  StoredModel model;
  model.name = name;
  model.directory = layout_.model(name);
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, CheckSizes(files_, model.directory));
  model.manifest_digest = manifest.digest;
  model.bytes = manifest.total_bytes();
  model.created = ModifiedTime(JoinPath(model.directory, kManifestFile));
  const std::string info = JoinPath(model.directory, "nibble.json");
  if (files_.Exists(info)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, files_.Read(info, kMaxInfoBytes));
    NIBBLE_ASSIGN_OR_RETURN(model.info, base::ParseJson(text));
  }
  return model;
}

std::vector<StoredModel> ModelStore::List() const {
  base::MutexLock lock(mutex_);
  std::vector<StoredModel> all;
  for (const auto& [name, model] : models_) all.push_back(model);
  return all;
}

absl::StatusOr<StoredModel> ModelStore::Get(std::string_view name) const {
  base::MutexLock lock(mutex_);
  const auto it = models_.find(name);
  if (it == models_.end()) return names_->NotFound(name);
  return it->second;
}

absl::StatusOr<Manifest> ModelStore::Verify(std::string_view name, const Cancelled& cancelled) const {
  NIBBLE_ASSIGN_OR_RETURN(const StoredModel model, Get(name));
  return store::Verify(files_, model.directory, cancelled);
}

absl::Status ModelStore::Reserve(std::string_view name, std::string_view owner) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  base::MutexLock lock(mutex_);
  if (models_.contains(name)) return names_->Taken(name);
  return names_->Reserve(name, owner);
}

void ModelStore::Unreserve(std::string_view name, std::string_view owner) { names_->Unreserve(name, owner); }

absl::Status ModelStore::Publish(std::string_view name, std::string_view owner, const std::string& directory,
                                 const std::string& manifest_digest) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  base::MutexLock lock(mutex_);
  if (const auto it = models_.find(name); it != models_.end()) {
    if (it->second.manifest_digest != manifest_digest) return names_->Taken(name);
    names_->Unreserve(name, owner);
    return absl::OkStatus();
  }
  if (!names_->ReservedBy(name, owner)) {
    return absl::FailedPreconditionError(StrCat("the model name \"", name, "\" is not reserved by ", owner));
  }
  const auto manifest = CheckSizes(files_, directory);
  if (absl::IsNotFound(manifest.status())) return absl::DataLossError(StrCat(directory, " is gone"));
  if (!manifest.ok()) return manifest.status();
  if (manifest->digest != manifest_digest) {
    return absl::DataLossError(StrCat(directory, " is not the output that the job recorded"));
  }
  NIBBLE_RETURN_IF_ERROR(MovePublished(files_, directory, layout_.model(name)));
  NIBBLE_ASSIGN_OR_RETURN(StoredModel model, Load(std::string(name)));
  models_.emplace(name, std::move(model));
  names_->Unreserve(name, owner);
  return absl::OkStatus();
}

ModelStore::Pending::Pending(ModelStore& store, std::string name, std::string owner, PendingDirectory directory)
    : store_(store), name_(std::move(name)), owner_(std::move(owner)), directory_(std::move(directory)) {}

ModelStore::Pending::~Pending() { store_.names_->Unreserve(name_, owner_); }

absl::StatusOr<std::unique_ptr<ModelStore::Pending>> ModelStore::Begin(std::string_view name) {
  NIBBLE_RETURN_IF_ERROR(CheckSpace(files_, layout_.root(), min_free_bytes_));
  const std::string owner = base::NewId("import");
  NIBBLE_RETURN_IF_ERROR(Reserve(name, owner));
  auto directory = PendingDirectory::Create(files_, layout_.model(name));
  if (!directory.ok()) {
    names_->Unreserve(name, owner);
    return directory.status();
  }
  return std::unique_ptr<Pending>(new Pending(*this, std::string(name), owner, *std::move(directory)));
}

absl::StatusOr<StoredModel> ModelStore::Pending::Commit(const Cancelled& cancelled) {
  // Hashing takes seconds: not under the store's mutex. The reservation keeps the name.
  NIBBLE_RETURN_IF_ERROR(directory_.Commit(cancelled).status());
  NIBBLE_ASSIGN_OR_RETURN(StoredModel model, store_.Load(name_));
  base::MutexLock lock(store_.mutex_);
  store_.models_.emplace(name_, model);
  store_.names_->Unreserve(name_, owner_);
  return model;
}

absl::StatusOr<std::shared_ptr<const Pin>> ModelStore::PinModel(std::string_view name, std::string_view user) {
  base::MutexLock lock(mutex_);
  if (!models_.contains(name)) return names_->NotFound(name);
  return names_->AddPin(name, user);
}

absl::Status ModelStore::Delete(std::string_view name) {
  base::MutexLock lock(mutex_);
  const auto it = models_.find(name);
  if (it == models_.end()) return names_->NotFound(name);
  NIBBLE_RETURN_IF_ERROR(names_->CheckUnused(name));
  NIBBLE_RETURN_IF_ERROR(RemovePublished(files_, it->second.directory));
  models_.erase(it);
  return absl::OkStatus();
}

}  // namespace nibble::store
