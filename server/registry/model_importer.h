#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/auth/request_owner.h"
#include "server/model/import.h"
#include "server/registry/model_requests.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_scope.h"
#include "server/registry/upload_table.h"

namespace nibble::registry {

// Makes models of uploads, and of directories and GGUF files below --import_root. Thread-safe; all arguments are
// borrowed.
class ModelImporter {
 public:
  ModelImporter(const ModelWork& work, UploadTable& uploads) : work_(work), uploads_(uploads) {}

  // Checks names, fields and existence before the operation begins. `owner`: the caller, whose uploads `request` may
  // name.
  absl::Status Check(const ImportRequest& request, const auth::RequestOwner& owner);
  absl::Status Import(const ImportRequest& request, const auth::RequestOwner& owner, OperationScope& scope);

 private:
  // Import `source`: a directory or, in ImportWeights, a GGUF file. Both wait for their turn before they read tensors.
  absl::Status ImportWeights(const ImportRequest& request, const std::string& source, const std::string& target,
                             OperationFiles& files, OperationScope& scope);
  absl::Status ImportAdapter(const ImportRequest& request, const std::string& source, const std::string& target,
                             OperationFiles& files, OperationScope& scope);
  model::RandomInit RandomInitOf(const ImportRequest& request, OperationScope& scope) const;
  // Waits for a turn, and returns the tokenizer of a model with random weights.
  absl::StatusOr<model::TrainedTokenizer> TrainTokenizer(const ImportRequest& request, const model::ModelConfig& config,
                                                         OperationScope& scope) const;

  const ModelWork& work_;
  UploadTable& uploads_;
};

}  // namespace nibble::registry
