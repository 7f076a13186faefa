#include "server/rpc/model_answers.h"

#include <utility>

#include "absl/strings/cord.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/model_proto.h"

namespace nibble::rpc {

absl::StatusOr<v1::Model> ModelAnswers::Describe(const std::string& name, bool detailed) const {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, library_.Find(name));
  auto model = ToProto(stored, manager_.IsLoaded(name), detailed);
  if (model.ok() || !store::SaysDamaged(model.status())) return model;
  NIBBLE_RETURN_IF_ERROR(library_.models().Get(name).status());  // the model may have been deleted since
  return library_.ReportDamaged(name, model.status());
}

v1::Residents ModelAnswers::Residents() const { return ToProto(manager_); }

absl::StatusOr<operations::OperationResponse> ModelAnswers::Made(const std::string& name) const {
  NIBBLE_ASSIGN_OR_RETURN(v1::Model model, Describe(name, /*detailed=*/true));
  if (model.origin() == v1::MODEL_ORIGIN_CONVERT) {
    v1::ConvertModelResponse response;
    *response.mutable_report() = model.conversion();
    if (const std::string& adapter = model.conversion().adapter(); !adapter.empty()) {
      absl::StatusOr<v1::Model> made = Describe(adapter, /*detailed=*/true);
      if (made.ok()) {
        *response.mutable_adapter() = *std::move(made);
      } else if (!absl::IsNotFound(made.status())) {  // it may have been deleted since
        return made.status();
      }
    }
    model.mutable_conversion()->clear_layers();
    *response.mutable_model() = std::move(model);
    return Packed(response);
  }
  if (model.origin() == v1::MODEL_ORIGIN_CHECKPOINT) {
    v1::PublishCheckpointResponse response;
    *response.mutable_model() = std::move(model);
    *response.mutable_residents() = Residents();
    return Packed(response);
  }
  return Packed(model);
}

absl::StatusOr<operations::OperationResponse> ModelAnswers::Loaded(const std::string& name) const {
  v1::LoadModelResponse response;
  NIBBLE_ASSIGN_OR_RETURN(*response.mutable_model(), Describe(name, /*detailed=*/false));
  *response.mutable_residents() = Residents();
  return Packed(response);
}

operations::OperationResponse ModelAnswers::Exported(const registry::ExportedFiles& files) {
  v1::ExportModelResponse response;
  response.set_artifact_id(files.artifact_id);
  for (const registry::FileEntry& file : files.files) *response.add_files() = ToProto(file);
  return Packed(response);
}

operations::OperationResponse ModelAnswers::Verified(const registry::VerifyReport& report) {
  return Packed(ToProto(report));
}

absl::Status ModelAnswers::Exceeded(const registry::ConvertOutcome& outcome) {
  absl::Status status = outcome.tolerance;
  const v1::ConversionReport brief = ToProto(outcome.report, /*detailed=*/false);
  status.SetPayload("type.googleapis.com/nibble.v1.ConversionReport", absl::Cord(brief.SerializeAsString()));
  return status;
}

absl::StatusOr<std::optional<operations::OperationResponse>> ModelAnswers::Recover(
    const registry::OperationIdentity& operation, const std::string& model) const {
  NIBBLE_ASSIGN_OR_RETURN(const bool made, library_.WasMadeBy(model, operation));
  if (!made) return std::nullopt;
  NIBBLE_ASSIGN_OR_RETURN(operations::OperationResponse response, Made(model));
  base::LogInfo("operation recovered", {{"name", operation.name}, {"model", model}});
  return response;
}

}  // namespace nibble::rpc
