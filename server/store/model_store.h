#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/mutex.h"
#include "server/store/layout.h"
#include "server/store/name_table.h"
#include "server/store/published_directory.h"

namespace nibble::store {

struct StoredModel {
  std::string name;
  std::string directory;
  std::string manifest_digest;
  std::uint64_t bytes = 0;
  absl::Time created;
  base::Json info;  // nibble.json as it lies there (model::ParseArtifactInfo reads it); an object, or null
  bool damaged = false;  // of List alone: nothing but its name and directory is known
};

// Changes with the model's bytes.
std::string Etag(const StoredModel& model);

// The artifacts below models/, by name. What an artifact means is server/model's affair. Thread-safe.
class ModelStore {
 public:
  // Reads what is there and removes temporaries. A directory that does not fit its manifest, has none, or cannot be read now, keeps its
  // name: it is read again when it is asked for.
  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(base::FileSystem& files, const Layout& layout,
                                                          std::uint64_t min_free_bytes = 0);

  std::vector<StoredModel> List() const;                             // by name
  // NotFound (MODEL); of what was not as it was published when the server started, DataLoss (ARTIFACT_CORRUPT). So is all below.
  absl::StatusOr<StoredModel> Get(std::string_view name) const;
  // AlreadyExists (NAME_TAKEN) if a model has the name or a job that is not done reserved it. `viewer`: of who asks (JobTenant).
  absl::Status CheckFree(std::string_view name, const JobTenant& viewer = std::nullopt) const;
  // Every hash; DataLoss names the file.
  absl::StatusOr<Manifest> Verify(std::string_view name, const Cancelled& cancelled = {}) const;

  // A name that `owner` will publish under later: nobody else can take it. AlreadyExists (NAME_TAKEN). Idempotent for the
  // same owner. Kept in memory: owners say it again after a restart.
  absl::Status Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant = {});
  void Unreserve(std::string_view name, std::string_view owner);

  // Moves a directory published elsewhere on the same file system (a trainer's output) under `name`, which `owner` has reserved, or
  // does now; from then on the model itself holds it. Fine when models/NAME is there already with this manifest: the move was made
  // before a crash, or before an error of the disk. AlreadyExists and DataLoss (also where what was moved before is deleted) are for
  // good; after any other error it can be tried again.
  absl::Status Publish(std::string_view name, std::string_view owner, const std::string& directory, const std::string& manifest_digest,
                       const JobTenant& tenant = {});

  // A model written in place: write below directory(), then Commit.
  class Pending {
   public:
    const std::string& directory() const { return directory_.path(); }
    absl::StatusOr<StoredModel> Commit(const Cancelled& cancelled = {});
    ~Pending();

   private:
    friend class ModelStore;
    Pending(ModelStore& store, std::string name, std::string owner, PendingDirectory directory);
    ModelStore& store_;
    const std::string name_;
    const std::string owner_;
    PendingDirectory directory_;
  };
  // AlreadyExists (NAME_TAKEN), DISK_FULL. `viewer`: of who asks (JobTenant).
  absl::StatusOr<std::unique_ptr<Pending>> Begin(std::string_view name, const JobTenant& viewer = {});

  // While a pin lives the model cannot be deleted. `user` says who, in the refusal ("job job-1", "loaded").
  absl::StatusOr<std::shared_ptr<const Pin>> PinModel(std::string_view name, std::string_view user, const JobTenant& tenant = {});

  // A damaged one too. `tenant`: of who asks, "" for none (NameTable::CheckUnused). Errors: NotFound; FailedPrecondition (MODEL_IN_USE);
  // Aborted (ETAG_MISMATCH), and of a damaged one, whose etag nobody knows, DataLoss, where an etag is given.
  absl::Status Delete(std::string_view name, const std::optional<std::string>& etag = {}, const std::string& tenant = "");

 private:
  ModelStore(base::FileSystem& files, Layout layout, std::uint64_t min_free_bytes);
  absl::StatusOr<StoredModel> Load(const std::string& name, const std::string& directory) const;
  StoredModel Unread(const std::string& name) const;
  absl::StatusOr<StoredModel> Find(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  const Layout layout_;
  const std::uint64_t min_free_bytes_;
  mutable base::Mutex mutex_;
  mutable std::map<std::string, StoredModel, std::less<>> models_ ABSL_GUARDED_BY(mutex_);  // Find reads the damaged again
  const std::shared_ptr<NameTable> names_;
};

}  // namespace nibble::store
