// Stored models, by name.
#pragma once
#include <cstdint>
#include <functional>
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
  base::Json info;       // nibble.json as stored (model::ParseArtifactInfo parses it); an object, or null
  bool damaged = false;  // only in results of List: nothing but the name and directory is known
};

// Changes when the model's bytes change.
std::string Etag(const StoredModel& model);

// The artifacts below models/, by name. server/model interprets their content. Thread-safe.
class ModelStore {
 public:
  // Reads the models and removes temporaries. A directory that does not match its manifest, has none, or cannot be read
  // now keeps its name, and is read again each time it is requested.
  static absl::StatusOr<std::unique_ptr<ModelStore>> Open(base::FileSystem& files, const StatePaths& paths,
                                                          std::uint64_t min_free_bytes = 0);

  std::vector<StoredModel> List() const;  // by name
  // Errors: NotFound (MODEL); DataLoss (ARTIFACT_CORRUPT) if the model was damaged when the server started and still
  // is.
  absl::StatusOr<StoredModel> Get(std::string_view name) const;
  // AlreadyExists (NAME_TAKEN) if a model has the name or an unfinished job has reserved it. `viewer`: the caller
  // (JobTenant).
  absl::Status CheckFree(std::string_view name, const JobTenant& viewer = std::nullopt) const;
  // Checks every hash. Errors: as Get; DataLoss names the file.
  absl::StatusOr<Manifest> Verify(std::string_view name, const Cancelled& cancelled = {}) const;

  // Reserves a name under which `owner` will publish later; no other owner can take it. AlreadyExists (NAME_TAKEN).
  // Idempotent for the same owner. Kept in memory only: owners reserve again after a restart.
  absl::Status Reserve(std::string_view name, std::string_view owner, const JobTenant& tenant = {});
  void Unreserve(std::string_view name, std::string_view owner);

  // Moves a directory published elsewhere on the same file system (a trainer's output) to `name`, which `owner` has
  // reserved or reserves now. The model then holds the name. Succeeds if models/NAME already exists with this manifest:
  // an earlier call moved it before a crash or a disk error. AlreadyExists and DataLoss (also if the moved model was
  // deleted) are permanent; after any other error the caller may retry.
  absl::Status Publish(std::string_view name, std::string_view owner, const std::string& directory,
                       const std::string& manifest_digest, const JobTenant& tenant = {});

  // A model written in place: write below directory(), then Commit.
  class Pending {
   public:
    const std::string& directory() const { return directory_.path(); }
    absl::StatusOr<StoredModel> Commit(const Cancelled& cancelled = {}, const base::WrittenDigests& written = {});
    ~Pending();

   private:
    friend class ModelStore;
    Pending(ModelStore& store, std::string name, std::string owner, PendingDirectory directory);
    ModelStore& store_;
    const std::string name_;
    const std::string owner_;
    PendingDirectory directory_;
  };
  // Errors: AlreadyExists (NAME_TAKEN), InvalidArgument (name), ResourceExhausted (DISK_FULL). `viewer`: the caller
  // (JobTenant).
  absl::StatusOr<std::unique_ptr<Pending>> Begin(std::string_view name, const JobTenant& viewer = {});

  // The model cannot be deleted while the pin exists. The refusal shows `user` ("job job-1", "loaded").
  absl::StatusOr<std::shared_ptr<const Pin>> PinModel(std::string_view name, std::string_view user,
                                                      const JobTenant& tenant = {});

  // Deletes a model, damaged or not. `tenant`: of the caller, "" for none (NameTable::CheckUnused). Errors: NotFound;
  // FailedPrecondition (MODEL_IN_USE); with an etag also Aborted (ETAG_MISMATCH), and DataLoss for a damaged model,
  // whose etag is unknown.
  absl::Status Delete(std::string_view name, const std::optional<std::string>& etag = {},
                      const std::string& tenant = "");

 private:
  ModelStore(base::FileSystem& files, StatePaths paths, std::uint64_t min_free_bytes);
  // Removes the model from the store, under the lock. Returns the argument of RemoveHidden.
  absl::StatusOr<std::string> Hide(std::string_view name, const std::optional<std::string>& etag,
                                   const std::string& tenant);
  absl::StatusOr<StoredModel> Load(const std::string& name, const std::string& directory) const;
  StoredModel Unread(const std::string& name) const;
  absl::StatusOr<StoredModel> Find(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  const StatePaths paths_;
  const std::uint64_t min_free_bytes_;
  mutable base::Mutex mutex_;
  mutable std::map<std::string, StoredModel, std::less<>> models_ ABSL_GUARDED_BY(mutex_);  // Find updates it
  const std::shared_ptr<NameTable> names_;
};

}  // namespace nibble::store
