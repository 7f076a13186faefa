#include "server/registry/model_library.h"

#include <utility>

#include "server/base/status_macros.h"
#include "server/registry/model_files.h"
#include "server/registry/operation_mark.h"

namespace nibble::registry {

ModelLibrary::ModelLibrary(store::StateDirectory& state, TextCache& texts, data::TokenCache& tokens,
                           telemetry::Metrics& metrics, base::Clock& clock, UploadTable& uploads,
                           const kernels::Stream& convert_stream, const kernels::Stream& serve_stream,
                           ModelLibraryOptions options)
    : state_(state),
      texts_(texts),
      tokens_(tokens),
      metrics_(metrics),
      clock_(clock),
      uploads_(uploads),
      convert_stream_(convert_stream),
      serve_stream_(serve_stream),
      options_(std::move(options)),
      admission_(options_.memory) {}

absl::StatusOr<std::unique_ptr<store::Upload>> ModelLibrary::BeginUpload() {
  return store::Upload::Begin(state_.files, state_.paths, options_.upload_limits);
}

absl::StatusOr<store::StoredModel> ModelLibrary::Find(const std::string& name) const {
  return FindModel(*state_.models, metrics_, name);
}

absl::Status ModelLibrary::ReportDamaged(const std::string& name, const absl::Status& why) const {
  return registry::ReportDamaged(metrics_, name, why);
}

absl::StatusOr<WorkAdmission::Turn> ModelLibrary::AwaitTurn(const std::string& what, const WorkMemory& need,
                                                            OperationScope& scope) {
  return admission_.Await(what, need, scope.stopped(), [&scope] { scope.Progress("wait", 0, 1); });
}

absl::StatusOr<bool> ModelLibrary::WasMadeBy(const std::string& model, const OperationIdentity& operation) {
  const auto stored = state_.models->Get(model);
  if (absl::IsNotFound(stored.status())) return false;
  NIBBLE_RETURN_IF_ERROR(stored.status());
  if (!IsMadeBy(*stored, operation)) return false;
  // The server may have been killed before it synced the rename.
  NIBBLE_RETURN_IF_ERROR(state_.files.SyncDirectory(state_.paths.models()));
  return true;
}

}  // namespace nibble::registry
