// Rows of ListModels, kept: a row is read from several files, and a published model never changes.
#pragma once
#include <cstddef>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/mutex.h"
#include "server/store/model_store.h"

namespace nibble::rpc {

// Thread-safe.
class ModelRows {
 public:
  // A row has 1 to 2 KiB.
  static constexpr std::size_t kMaxRows = 8192;

  // The model as a list shows it, without the layers of its conversion. Errors: those of ToProto, which are not kept.
  absl::StatusOr<v1::Model> Get(const store::StoredModel& stored, bool loaded);
  // Rows of models that are not there any more stay until there are kMaxRows, when all rows go.
  std::size_t size() const;

 private:
  struct Row {
    std::string etag;
    absl::Time created;
    v1::Model model;
  };
  mutable base::Mutex mutex_;
  std::map<std::string, Row, std::less<>> rows_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace nibble::rpc
