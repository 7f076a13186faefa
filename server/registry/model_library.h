// Work on whole models: import, convert, export, verify, publish. Called on workers and by operations.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/clock.h"
#include "server/data/token_cache.h"
#include "server/registry/checkpoint_publisher.h"
#include "server/registry/model_converter.h"
#include "server/registry/model_exporter.h"
#include "server/registry/model_importer.h"
#include "server/registry/model_verifier.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_scope.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/registry/work_admission.h"
#include "server/store/state_directory.h"
#include "server/store/upload.h"
#include "server/telemetry/metrics.h"

namespace nibble::registry {

// Thread-safe. All arguments but `options` are borrowed.
class ModelLibrary {
 public:
  ModelLibrary(store::StateDirectory& state, TextCache& texts, data::TokenCache& tokens, telemetry::Metrics& metrics,
               base::Clock& clock, UploadTable& uploads, const kernels::Stream& convert_stream,
               const kernels::Stream& serve_stream, ModelLibraryOptions options);
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  ModelImporter& importer() { return importer_; }
  ModelConverter& converter() { return converter_; }
  ModelExporter& exporter() { return exporter_; }
  ModelVerifier& verifier() { return verifier_; }
  CheckpointPublisher& publisher() { return publisher_; }

  store::ModelStore& models() { return *work_.state.models; }
  UploadTable& uploads() { return uploads_; }
  const ModelLibraryOptions& options() const { return options_; }
  absl::StatusOr<std::unique_ptr<store::Upload>> BeginUpload();
  // Errors: NotFound (MODEL), DataLoss (a damaged model).
  absl::StatusOr<store::StoredModel> Find(const std::string& name) const;
  // Counts and logs damage that the caller has found. Returns DataLoss (ARTIFACT_CORRUPT).
  absl::Status ReportDamaged(const std::string& name, const absl::Status& why) const;
  // After a restart: whether this import, conversion or publication made the model. If so, first makes it durable.
  // Otherwise removes the adapter that the conversion published before the model (ModelConverter::Publish).
  absl::StatusOr<bool> WasMadeBy(const std::string& model, const OperationIdentity& operation);

 private:
  void RemoveMadeBy(const OperationIdentity& operation);

  UploadTable& uploads_;
  const ModelLibraryOptions options_;
  WorkAdmission admission_;
  const ModelWork work_;
  ModelImporter importer_;
  ModelConverter converter_;
  ModelExporter exporter_;
  ModelVerifier verifier_;
  CheckpointPublisher publisher_;
};

}  // namespace nibble::registry
