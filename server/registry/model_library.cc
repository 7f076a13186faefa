#include "server/registry/model_library.h"

#include <utility>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/registry/model_files.h"
#include "server/registry/operation_mark.h"

namespace nibble::registry {

ModelLibrary::ModelLibrary(store::StateDirectory& state, TextCache& texts, data::TokenCache& tokens,
                           telemetry::Metrics& metrics, base::Clock& clock, UploadTable& uploads,
                           const kernels::Stream& convert_stream, const kernels::Stream& serve_stream,
                           ModelLibraryOptions options)
    : uploads_(uploads),
      options_(std::move(options)),
      admission_(options_.memory),
      work_{state, metrics, admission_, convert_stream, options_},
      importer_(work_, uploads),
      converter_(work_, texts, tokens, clock),
      exporter_(work_),
      verifier_(work_, serve_stream),
      publisher_(work_) {}

absl::StatusOr<std::unique_ptr<store::Upload>> ModelLibrary::BeginUpload() {
  return store::Upload::Begin(work_.state.files, work_.state.paths, options_.upload_limits);
}

absl::StatusOr<store::StoredModel> ModelLibrary::Find(const std::string& name) const {
  return FindModel(*work_.state.models, work_.metrics, name);
}

absl::Status ModelLibrary::ReportDamaged(const std::string& name, const absl::Status& why) const {
  return registry::ReportDamaged(work_.metrics, name, why);
}

absl::StatusOr<bool> ModelLibrary::WasMadeBy(const std::string& model, const OperationIdentity& operation) {
  const auto stored = work_.state.models->Get(model);
  if (!absl::IsNotFound(stored.status())) NIBBLE_RETURN_IF_ERROR(stored.status());
  if (!stored.ok() || !IsMadeBy(*stored, operation)) {
    RemoveMadeBy(operation);
    return false;
  }
  // The server may have been killed before it synced the rename.
  NIBBLE_RETURN_IF_ERROR(work_.state.files.SyncDirectory(work_.state.paths.models()));
  return true;
}

void ModelLibrary::RemoveMadeBy(const OperationIdentity& operation) {
  for (const store::StoredModel& stored : work_.state.models->List()) {
    if (!IsMadeBy(stored, operation)) continue;
    const absl::Status removed = work_.state.models->Delete(stored.name);
    if (removed.ok()) {
      base::LogWarning("removed the adapter of an interrupted conversion, which made no base",
                       {{"model", stored.name}});
    } else {
      base::LogWarning("cannot remove the adapter of an interrupted conversion, which made no base",
                       {{"model", stored.name}, {"error", std::string(removed.message())}});
    }
  }
}

}  // namespace nibble::registry
