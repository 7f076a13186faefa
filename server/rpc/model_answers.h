// Builds the answers about models, and the responses of operations on them.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/operations/operation.h"
#include "server/registry/model_library.h"
#include "server/registry/operation_scope.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

// Thread-safe. Both arguments are borrowed.
class ModelAnswers {
 public:
  ModelAnswers(registry::ModelLibrary& library, serve::ModelManager& manager) : library_(library), manager_(manager) {}

  // `detailed`: with the layers of its conversion's report. Errors: NotFound (MODEL), DataLoss (ARTIFACT_CORRUPT).
  absl::StatusOr<v1::Model> Describe(const std::string& name, bool detailed) const;
  v1::Residents Residents() const;

  // The response of the operation that made this model (import, conversion or publication), built from the stored
  // model.
  absl::StatusOr<operations::OperationResponse> Made(const std::string& name) const;
  // The LoadModelResponse of a model that is in memory.
  absl::StatusOr<operations::OperationResponse> Loaded(const std::string& name) const;
  static operations::OperationResponse Exported(const registry::ExportedFiles& files);
  static operations::OperationResponse Verified(const registry::VerifyReport& report);
  // The status of a conversion that exceeded its tolerance, with the report without layers as a detail.
  static absl::Status Exceeded(const registry::ConvertOutcome& outcome);

  // For OperationTable::Recover: the response of the import, conversion or publication that made `model`. Exports do
  // not outlive the server.
  absl::StatusOr<std::optional<operations::OperationResponse>> Recover(const registry::OperationIdentity& operation,
                                                                       const std::string& model) const;

 private:
  registry::ModelLibrary& library_;
  serve::ModelManager& manager_;
};

}  // namespace nibble::rpc
