#pragma once
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/registry/exported_files.h"
#include "server/registry/model_requests.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_scope.h"

namespace nibble::registry {

// Exports models in the formats of other programs. Thread-safe; the argument is borrowed.
class ModelExporter {
 public:
  explicit ModelExporter(const ModelWork& work) : work_(work) {}

  // Checks names, fields and existence before the operation begins.
  absl::Status Check(const ExportRequest& request);
  // The operation owns the files; Exported() finds them by their artifact id.
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Export(const ExportRequest& request, OperationScope& scope);
  // Errors: NotFound (ARTIFACT).
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Exported(const std::string& artifact_id);

 private:
  const ModelWork& work_;
  base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const ExportedFiles>> exports_
      ABSL_GUARDED_BY(mutex_);  // their operations own them
};

}  // namespace nibble::registry
