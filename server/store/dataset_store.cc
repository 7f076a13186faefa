#include "server/store/dataset_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/store/published_directory.h"

namespace nibble::store {

using base::JoinPath;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxMetaBytes = 1u << 20;

UploadLimits OneFile(UploadLimits limits) {
  limits.max_files = 1;
  return limits;
}

}  // namespace

DatasetStore::DatasetStore(base::FileSystem& files, StatePaths paths, UploadLimits limits)
    : files_(files),
      paths_(std::move(paths)),
      limits_(OneFile(limits)),
      names_(std::make_shared<NameTable>("dataset", "DATASET")) {}

absl::StatusOr<std::unique_ptr<DatasetStore>> DatasetStore::Open(base::FileSystem& files, const StatePaths& paths,
                                                                 UploadLimits limits) {
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(paths.datasets()));
  NIBBLE_RETURN_IF_ERROR(RemoveTemporaries(files, paths.datasets()));
  std::unique_ptr<DatasetStore> store(new DatasetStore(files, paths, limits));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(paths.datasets()));
  base::MutexLock lock(store->mutex_);
  for (const std::string& name : names) {
    if (const absl::Status named = base::CheckName("name", name); !named.ok()) {
      base::LogWarning("ignored an entry with an invalid name in datasets/",
                       {{"name", name}, {"why", std::string(named.message())}});
      continue;
    }
    auto dataset = store->Load(name);
    if (!dataset.ok()) {
      base::LogError("cannot read a dataset", {{"name", name}, {"why", std::string(dataset.status().message())}});
    }
    store->datasets_.emplace(name, dataset.ok() ? *std::move(dataset) : Unread(name));
  }
  return store;
}

std::string Etag(const StoredDataset& dataset) { return dataset.sha256.substr(0, 16); }

StoredDataset DatasetStore::Unread(const std::string& name) {
  StoredDataset dataset;
  dataset.name = name;
  dataset.damaged = true;
  return dataset;
}

absl::StatusOr<StoredDataset> DatasetStore::Load(const std::string& name) const {
  const std::string directory = paths_.dataset(name);
  NIBBLE_ASSIGN_OR_RETURN(const Manifest manifest, CheckSizes(files_, directory));
  const auto data = std::find_if(manifest.files.begin(), manifest.files.end(),
                                 [](const ManifestEntry& file) { return file.name == kDatasetFile; });
  if (data == manifest.files.end()) return absl::DataLossError(StrCat(directory, " has no ", kDatasetFile));
  StoredDataset dataset;
  dataset.name = name;
  dataset.data_path = JoinPath(directory, kDatasetFile);
  dataset.sha256 = data->sha256;
  dataset.bytes = data->size;
  struct stat info;
  if (::stat(JoinPath(directory, kManifestFile).c_str(), &info) == 0)
    dataset.created = absl::TimeFromTimespec(info.st_mtim);
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files_.Read(JoinPath(directory, kDatasetMetaFile), kMaxMetaBytes));
  NIBBLE_ASSIGN_OR_RETURN(dataset.meta, base::ParseJson(text));
  return dataset;
}

std::vector<StoredDataset> DatasetStore::List() const {
  base::MutexLock lock(mutex_);
  std::vector<StoredDataset> all;
  for (const auto& [name, dataset] : datasets_) {
    if (dataset.damaged) Find(name).status().IgnoreError();  // reads it again; updates `dataset`
    all.push_back(dataset);
  }
  return all;
}

// Re-reads a damaged entry, like ModelStore::Find.
absl::StatusOr<StoredDataset> DatasetStore::Find(std::string_view name) const {
  const auto it = datasets_.find(name);
  if (it == datasets_.end()) return names_->NotFound(name);
  if (it->second.damaged) {
    auto dataset = Load(it->first);
    if (!dataset.ok()) return SaysDamaged(dataset.status()) ? names_->Damaged(name) : dataset.status();
    it->second = *std::move(dataset);
  }
  return it->second;
}

absl::StatusOr<StoredDataset> DatasetStore::Get(std::string_view name) const {
  base::MutexLock lock(mutex_);
  return Find(name);
}

absl::StatusOr<std::shared_ptr<const Pin>> DatasetStore::PinDataset(std::string_view name, std::string_view user,
                                                                    const JobTenant& tenant) {
  base::MutexLock lock(mutex_);
  if (!datasets_.contains(name)) return names_->NotFound(name);
  return names_->AddPin(name, user, tenant);
}

absl::Status DatasetStore::Delete(std::string_view name, const std::optional<std::string>& etag,
                                  const std::string& tenant) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> hidden, Hide(name, etag, tenant));
  for (const std::string& path : hidden) RemoveHidden(files_, path);  // without the lock, as in ModelStore::Delete
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DatasetStore::Hide(std::string_view name,
                                                            const std::optional<std::string>& etag,
                                                            const std::string& tenant) {
  base::MutexLock lock(mutex_);
  const auto it = datasets_.find(name);
  if (it == datasets_.end()) return names_->NotFound(name);
  if (etag.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(const StoredDataset dataset, Find(name));
    NIBBLE_RETURN_IF_ERROR(names_->CheckEtag(Etag(dataset), etag));
  }
  NIBBLE_RETURN_IF_ERROR(names_->CheckUnused(name, tenant));
  auto hidden = HidePublished(files_, paths_.dataset(name));
  if (!hidden.ok() && !absl::IsNotFound(hidden.status())) return hidden.status();  // see ModelStore::Hide
  datasets_.erase(it);
  std::vector<std::string> paths;
  if (hidden.ok()) paths.push_back(*std::move(hidden));
  // Under the lock, because a new dataset of this name would have its token files at the same path.
  if (auto tokens = HidePublished(files_, paths_.tokens(name)); tokens.ok()) paths.push_back(*std::move(tokens));
  return paths;
}

void DatasetStore::RemoveTokensIfDeleted(std::string_view name) {
  std::string hidden;
  {
    // Under the lock, because a new dataset of this name would have its token files at the same path.
    base::MutexLock lock(mutex_);
    if (datasets_.contains(name)) return;
    if (auto tokens = HidePublished(files_, paths_.tokens(name)); tokens.ok()) hidden = *std::move(tokens);
  }
  RemoveHidden(files_, hidden);
}

DatasetStore::Pending::Pending(DatasetStore& store, std::string name, std::string owner, std::unique_ptr<Upload> upload)
    : store_(store), name_(std::move(name)), owner_(std::move(owner)), upload_(std::move(upload)) {}

DatasetStore::Pending::~Pending() { store_.names_->Unreserve(name_, owner_); }

absl::StatusOr<std::unique_ptr<DatasetStore::Pending>> DatasetStore::Begin(std::string_view name) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  const std::string owner = base::NewId("upload");
  {
    base::MutexLock lock(mutex_);
    if (datasets_.contains(name)) return names_->Taken(name);
    NIBBLE_RETURN_IF_ERROR(names_->Reserve(name, owner, std::nullopt, std::nullopt));
  }
  auto upload = Upload::Begin(files_, paths_, limits_);
  absl::Status status = upload.status();
  if (status.ok()) status = (*upload)->BeginFile(kDatasetFile);
  if (!status.ok()) {
    names_->Unreserve(name, owner);
    return status;
  }
  return std::unique_ptr<Pending>(new Pending(*this, std::string(name), owner, *std::move(upload)));
}

absl::StatusOr<StoredDataset> DatasetStore::Pending::Finish(std::string_view sha256, const DatasetValidator& validate) {
  NIBBLE_RETURN_IF_ERROR(upload_->FinishFile(sha256));
  const std::string uploaded = JoinPath(upload_->directory(), kDatasetFile);
  NIBBLE_ASSIGN_OR_RETURN(const base::Json meta, validate(uploaded));
  base::FileSystem& files = store_.files_;
  NIBBLE_ASSIGN_OR_RETURN(auto directory, PendingDirectory::Create(files, store_.paths_.dataset(name_)));
  NIBBLE_RETURN_IF_ERROR(files.Rename(uploaded, JoinPath(directory.path(), kDatasetFile)));
  NIBBLE_RETURN_IF_ERROR(
      base::WriteFileAtomically(files, JoinPath(directory.path(), kDatasetMetaFile), base::Dump(meta, 1)));
  NIBBLE_RETURN_IF_ERROR(directory.Commit().status());
  base::MutexLock lock(store_.mutex_);
  store_.datasets_.emplace(name_, Unread(name_));  // it exists, even if it cannot be read right now
  return store_.Find(name_);
}

}  // namespace nibble::store
