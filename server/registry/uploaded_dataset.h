#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/sha256.h"
#include "server/data/row.h"
#include "server/registry/import_root.h"
#include "server/registry/upload_table.h"
#include "server/store/dataset_store.h"

namespace nibble::registry {

struct NewDataset {
  std::string name;
  std::optional<data::RowFormat> format;  // unset: the first row decides
  std::size_t max_line_bytes = data::kDefaultMaxLineBytes;
  // The file below import_root that holds the content; unset: the content is appended. An empty import_root allows no
  // file.
  std::optional<std::string> server_path;
  std::string import_root;
  std::string file_name;  // of the owner's file; "": not given
};

// The received part of a dataset. If the name is taken, the content is only compared with the existing dataset: the
// same content gives the same result as the first upload. One thread.
class UploadedDataset final : public UploadContent {
 public:
  // `datasets` must outlive the result. Errors: AlreadyExists (NAME_TAKEN): another upload is using the name, or the
  // files of the existing dataset are damaged; DataLoss (ARTIFACT_CORRUPT): only the contents of its meta.json are
  // wrong; those of BeneathPath::Open.
  static absl::StatusOr<std::unique_ptr<UploadedDataset>> Begin(store::DatasetStore& datasets, NewDataset dataset);

  std::int32_t num_files() const override { return 1; }
  bool from_server() const { return server_file_ != nullptr; }

  // Charges the bytes to `stream`, then appends them. Errors: ResourceExhausted (UPLOAD_TOO_LARGE, DISK_FULL),
  // AlreadyExists (NAME_TAKEN): longer than the existing dataset; those of UploadTable::Stream::Charge.
  absl::Status Append(std::string_view bytes, UploadTable::Stream& stream);
  // Copies the server's file, if there is one, then checks the content and publishes the dataset. Call it once. An
  // empty `sha256` is allowed for a server's file only. Errors: those of Append and of
  // UploadTable::Stream::BeginFinish; InvalidArgument (FIELD_VIOLATION: server_path, finish.sha256; DATASET_FORMAT,
  // which names bad lines; DATASET_EMPTY); AlreadyExists (NAME_TAKEN): the existing dataset has different content.
  absl::StatusOr<store::StoredDataset> Finish(const std::string& sha256, UploadTable::Stream& stream);

 private:
  // The dataset with which the content is compared.
  struct Existing {
    store::StoredDataset stored;
    std::int64_t sent_bytes = 0;
    std::string sent_sha256;
  };

  UploadedDataset(store::DatasetStore& datasets, NewDataset dataset)
      : dataset_(std::move(dataset)), max_bytes_(static_cast<std::int64_t>(datasets.limits().max_file_bytes)) {}
  absl::Status AppendServerFile(UploadTable::Stream& stream);
  absl::Status Differs() const;

  const NewDataset dataset_;
  const std::int64_t max_bytes_;
  // One of these two is set.
  std::optional<Existing> existing_;
  std::unique_ptr<store::DatasetStore::Pending> pending_;
  std::unique_ptr<BeneathPath> server_file_;  // null: the content is appended
  std::int64_t received_ = 0;
  base::Sha256 digest_;
};

}  // namespace nibble::registry
