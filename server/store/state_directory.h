#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/store/dataset_store.h"
#include "server/store/disk_reserve.h"
#include "server/store/layout.h"
#include "server/store/model_store.h"
#include "server/store/state_lock.h"

namespace nibble::store {

// A state directory that this process owns. Open creates it and the directory of its database if needed, locks them,
// removes leftovers and opens its stores. Thread-safe through its members.
struct StateDirectory {
  // limits.min_free_bytes is the watermark for all writes, not only uploads. `database_path` is the directory of the
  // database; "": the state directory itself. FailedPrecondition (STATE_DIR_IN_USE): another server owns a directory.
  // FailedPrecondition without a reason: the two directories do not belong together (database_pair.h).
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(base::FileSystem& files, const std::string& path,
                                                              UploadLimits limits = {},
                                                              const std::string& database_path = "");
  base::FileSystem& files;
  const StatePaths paths;  // of the absolute paths
  std::unique_ptr<StateLock> lock;
  std::unique_ptr<StateLock> database_lock;  // null without a database directory of its own
  std::unique_ptr<DiskReserve> reserve;
  std::unique_ptr<ModelStore> models;
  std::unique_ptr<DatasetStore> datasets;
  std::uint64_t min_free_bytes = 0;  // the watermark
};

}  // namespace nibble::store
