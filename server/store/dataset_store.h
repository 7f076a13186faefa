// Stored datasets, by name.
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
#include "server/store/upload.h"

namespace nibble::store {

inline constexpr char kDatasetFile[] = "data.jsonl";
inline constexpr char kDatasetMetaFile[] = "meta.json";

struct StoredDataset {
  std::string name;
  std::string data_path;  // absolute
  std::string sha256;     // of the data file
  std::uint64_t bytes = 0;
  absl::Time created;
  base::Json meta;       // what the validator returned: "format", "rows", ...
  bool damaged = false;  // only in results of List: nothing but the name is known
};

// Changes when the data's bytes change.
std::string Etag(const StoredDataset& dataset);

// Reads the whole file at `data_path`. Returns meta.json, or an error if the data is invalid (DATASET_FORMAT, with
// lines).
using DatasetValidator = std::function<absl::StatusOr<base::Json>(const std::string& data_path)>;

// Uploaded training data below datasets/, by name. A published dataset never changes. Thread-safe.
class DatasetStore {
 public:
  // Like ModelStore::Open: a damaged dataset keeps its name.
  static absl::StatusOr<std::unique_ptr<DatasetStore>> Open(base::FileSystem& files, const StatePaths& paths,
                                                            UploadLimits limits = {});

  const UploadLimits& limits() const { return limits_; }
  std::vector<StoredDataset> List() const;
  // Errors: NotFound (DATASET); DataLoss (ARTIFACT_CORRUPT) as in ModelStore::Get.
  absl::StatusOr<StoredDataset> Get(std::string_view name) const;
  absl::StatusOr<std::shared_ptr<const Pin>> PinDataset(std::string_view name, std::string_view user,
                                                        const JobTenant& tenant = {});
  // Like ModelStore::Delete; also removes the dataset's token files. Errors: NotFound; FailedPrecondition
  // (DATASET_IN_USE); Aborted (ETAG_MISMATCH).
  absl::Status Delete(std::string_view name, const std::optional<std::string>& etag = {},
                      const std::string& tenant = "");
  // Call this after making token files of a dataset: it removes them if the dataset was deleted meanwhile.
  void RemoveTokensIfDeleted(std::string_view name);

  // A stream of chunks that becomes a complete dataset or leaves nothing. One thread.
  class Pending {
   public:
    absl::Status Append(std::string_view chunk) { return upload_->Append(chunk); }
    // Checks the SHA-256, runs the validator, then publishes.
    absl::StatusOr<StoredDataset> Finish(std::string_view sha256, const DatasetValidator& validate);
    std::uint64_t bytes() const { return upload_->bytes(); }
    ~Pending();

   private:
    friend class DatasetStore;
    Pending(DatasetStore& store, std::string name, std::string owner, std::unique_ptr<Upload> upload);
    DatasetStore& store_;
    const std::string name_;
    const std::string owner_;
    std::unique_ptr<Upload> upload_;
  };
  absl::StatusOr<std::unique_ptr<Pending>> Begin(std::string_view name);  // AlreadyExists (NAME_TAKEN)

 private:
  DatasetStore(base::FileSystem& files, StatePaths paths, UploadLimits limits);
  // Removes the dataset from the store, under the lock. Returns the arguments of RemoveHidden.
  absl::StatusOr<std::vector<std::string>> Hide(std::string_view name, const std::optional<std::string>& etag,
                                                const std::string& tenant);
  absl::StatusOr<StoredDataset> Load(const std::string& name) const;
  static StoredDataset Unread(const std::string& name);
  absl::StatusOr<StoredDataset> Find(std::string_view name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  base::FileSystem& files_;
  const StatePaths paths_;
  const UploadLimits limits_;
  mutable base::Mutex mutex_;
  mutable std::map<std::string, StoredDataset, std::less<>> datasets_ ABSL_GUARDED_BY(mutex_);  // Find updates it
  const std::shared_ptr<NameTable> names_;
};

}  // namespace nibble::store
