// Builds the answers about models, and the responses of operations on them.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "google/protobuf/any.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "server/registry/model_library.h"
#include "server/registry/operation_scope.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

// What Packed (begin_operation.h) returns: the response of an operation.
using OperationAnswer = google::protobuf::Any;

// Thread-safe. Both arguments are borrowed.
class ModelAnswers {
 public:
  ModelAnswers(registry::ModelLibrary& library, serve::ModelManager& manager) : library_(library), manager_(manager) {}

  // `detailed`: with the layers of its conversion's report. Errors: NotFound (MODEL), DataLoss (ARTIFACT_CORRUPT).
  absl::StatusOr<v1::Model> Describe(const std::string& name, bool detailed) const;
  v1::Residents Residents() const;

  // The response of the operation that made this model (import, conversion or publication), built from the stored
  // model.
  absl::StatusOr<OperationAnswer> Made(const std::string& name) const;
  // The LoadModelResponse of a model that is in memory.
  absl::StatusOr<OperationAnswer> Loaded(const std::string& name) const;
  static OperationAnswer Exported(const registry::ExportedFiles& files);
  static OperationAnswer Verified(const registry::VerifyReport& report);
  // The status of a conversion that exceeded its tolerance, with the report without layers as a detail.
  static absl::Status Exceeded(const registry::ConvertOutcome& outcome);

  // For OperationTable::Recover: the response of the import, conversion or publication that made `model`. Exports do
  // not outlive the server.
  absl::StatusOr<std::optional<OperationAnswer>> Recover(const registry::OperationIdentity& operation,
                                                         const std::string& model) const;

 private:
  registry::ModelLibrary& library_;
  serve::ModelManager& manager_;
};

}  // namespace nibble::rpc
