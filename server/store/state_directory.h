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

// A state directory that this process owns. Open creates it if needed, locks it, removes leftovers and opens its
// stores. Thread-safe through its members.
struct StateDirectory {
  // limits.min_free_bytes is the watermark for all writes, not only uploads.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(base::FileSystem& files, const std::string& path,
                                                              UploadLimits limits = {});
  base::FileSystem& files;
  const StatePaths paths;  // of the absolute path
  std::unique_ptr<StateLock> lock;
  std::unique_ptr<DiskReserve> reserve;
  std::unique_ptr<ModelStore> models;
  std::unique_ptr<DatasetStore> datasets;
  std::uint64_t min_free_bytes = 0;  // the watermark
};

}  // namespace nibble::store
