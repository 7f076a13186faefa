// Caches the rows of ListModels: a row is read from several files, and a published model never changes.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/mutex.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// Thread-safe.
class ModelRows {
 public:
  // A row has 1 to 2 KiB. A full cache drops all rows.
  static constexpr std::size_t kMaxRows = 8192;

  // Returns the model without the layers of its conversion. Reads the files again if the model was replaced or if the
  // name, size or time of a file in its directory changed. Errors are those of ToProto and are not cached.
  absl::StatusOr<v1::Model> Get(const store::StoredModel& stored, bool loaded);
  // Reads the rows of the first kMaxRows models, so that the first page after a start is as fast as later ones.
  void Warm(const std::vector<store::StoredModel>& all);
  // Drops the rows of models that are not in `all`, which must be sorted by name.
  void Keep(const std::vector<store::StoredModel>& all);
  std::size_t size() const;

 private:
  struct Row {
    std::string key;
    v1::Model model;
  };
  mutable base::Mutex mutex_;
  std::map<std::string, Row, std::less<>> rows_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace nibble::rpc
