// Work on whole models: import, convert, export, verify, publish. Called on workers and by operations.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/auth/request_owner.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/data/token_cache.h"
#include "server/model/artifact.h"
#include "server/model/text_assets.h"
#include "server/registry/checkpoint_source.h"
#include "server/registry/conversion_report.h"
#include "server/registry/exported_files.h"
#include "server/registry/model_requests.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_scope.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/registry/work_admission.h"
#include "server/store/state_directory.h"
#include "server/store/upload.h"
#include "server/telemetry/metrics.h"

namespace nibble::registry {

struct ModelLibraryOptions {
  std::string import_root;                                                   // "": server paths are refused
  store::UploadLimits upload_limits;                                         // of a model
  std::uint64_t max_tokenizer_bytes = model::kMaxTokenizerBytes;             // of an imported tokenizer.json
  absl::Duration kept = absl::Hours(1);                                      // how long exports are kept
  std::int64_t max_eval_tokens = 16384;                                      // for a conversion's losses
  std::shared_ptr<base::MemoryBudget> memory = base::MemoryBudget::Make(0);  // shared with served models and trainers
  // The functions below ask for jobs, which this folder does not know.
  // Returns the dataset that a job evaluated, or held rows out of ("held_out" in its model's provenance); "" for none.
  std::function<std::string(const std::string& job_id)> eval_dataset_of_job;
  // Finds a checkpoint by Checkpoint.name for a caller of `tenant` ("": sees all tenants). Errors: NotFound
  // (CHECKPOINT).
  std::function<absl::StatusOr<CheckpointSource>(const std::string& checkpoint, const std::string& tenant)>
      find_checkpoint;
};

// If the tolerance is not OK, it was exceeded and no model was made.
struct ConvertOutcome {
  ConversionReport report;
  absl::Status tolerance;  // FailedPrecondition (CONVERSION_TOLERANCE)
};

// The replay of a model's record.
struct VerifyReport {
  struct Difference {
    std::int64_t row = 0;  // of the record, counted through all its sequences
    std::int32_t token_id = 0;
    std::string recorded_digest;
    std::string computed_digest;
  };
  bool equal = false;
  std::int64_t rows = 0;
  std::int64_t differing_rows = 0;
  std::optional<Difference> first_difference;
  std::string recorded_by;
  std::string digest;  // of the weights
};

// Thread-safe. All arguments are borrowed.
class ModelLibrary {
 public:
  ModelLibrary(store::StateDirectory& state, TextCache& texts, data::TokenCache& tokens, telemetry::Metrics& metrics,
               base::Clock& clock, UploadTable& uploads, const kernels::Stream& convert_stream,
               const kernels::Stream& serve_stream, ModelLibraryOptions options);

  store::ModelStore& models() { return *state_.models; }
  UploadTable& uploads() { return uploads_; }
  const ModelLibraryOptions& options() const { return options_; }
  absl::StatusOr<std::unique_ptr<store::Upload>> BeginUpload();

  // Checks before the operation begins: names, fields, existence. `owner`: the caller, whose uploads `request` may
  // name.
  absl::Status CheckImport(const ImportRequest& request, const auth::RequestOwner& owner);
  absl::Status CheckConvert(const ConvertRequest& request, const std::string& tenant);
  absl::Status CheckExport(const ExportRequest& request);
  // Checks the name, the checkpoint and its base.
  absl::Status CheckPublish(const PublishRequest& request, const std::string& tenant);

  absl::Status Import(const ImportRequest& request, const auth::RequestOwner& owner, OperationScope& scope);
  absl::StatusOr<ConvertOutcome> Convert(const ConvertRequest& request, OperationScope& scope);
  // The operation owns the files, which Exported finds by their id.
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Export(const ExportRequest& request, OperationScope& scope);
  // Errors: NotFound (ARTIFACT).
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Exported(const std::string& artifact_id);
  // Waits for other work with whole models (WorkAdmission). Errors: NotFound (MODEL), FailedPrecondition (NO_RECORD),
  // DataLoss, Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), those of a load.
  absl::StatusOr<VerifyReport> Verify(const std::string& name, OperationScope& scope);
  // OK also if the model exists already and was made from exactly this checkpoint. Waits as Verify does. Errors:
  // NotFound (CHECKPOINT), AlreadyExists (NAME_TAKEN), FailedPrecondition (NOT_SERVABLE), Cancelled, ResourceExhausted
  // (OUT_OF_DEVICE_MEMORY), DataLoss (CHECKPOINT_CORRUPT; for the base ARTIFACT_CORRUPT).
  absl::Status PublishCheckpoint(const PublishRequest& request, const std::string& tenant, OperationScope& scope);

  // Errors: NotFound (MODEL), DataLoss (a damaged model).
  absl::StatusOr<store::StoredModel> Find(const std::string& name) const;
  // Counts and logs damage that the caller has found. Returns DataLoss (ARTIFACT_CORRUPT).
  absl::Status ReportDamaged(const std::string& name, const absl::Status& why) const;
  // After a restart: whether this import, conversion or publication made the model. Then the model is durable.
  absl::StatusOr<bool> WasMadeBy(const std::string& model, const OperationIdentity& operation);

 private:
  // Compares the model's record with its logits now, and its tensors with their digests.
  absl::StatusOr<VerifyReport> Replay(const store::StoredModel& stored, OperationScope& scope);
  // Whether the model of that name was made from exactly this checkpoint. It is then the answer to a repeated request.
  bool IsPublished(const PublishRequest& request, const CheckpointSource& source) const;
  // Compares every byte of the checkpoint with its manifest. Errors: NotFound (CHECKPOINT), DataLoss
  // (CHECKPOINT_CORRUPT), Cancelled.
  absl::StatusOr<store::Manifest> CheckCheckpoint(const std::string& checkpoint, const CheckpointSource& source,
                                                  const base::Cancelled& cancelled);
  // Waits for the operation's turn; the progress shows "wait" meanwhile. `what`: as for WorkAdmission::Await.
  absl::StatusOr<WorkAdmission::Turn> AwaitTurn(const std::string& what, const WorkMemory& need, OperationScope& scope);
  // Import the files in the directory `source`. Both wait as Verify does, before they read tensors.
  absl::Status ImportWeights(const ImportRequest& request, const std::string& source, const std::string& target,
                             OperationFiles& files, OperationScope& scope);
  absl::Status ImportAdapter(const ImportRequest& request, const std::string& source, const std::string& target,
                             OperationFiles& files, OperationScope& scope);
  absl::Status AddLosses(const ConvertRequest& request, const std::string& dataset, const std::string& source,
                         const std::string& target, OperationScope& scope, ConversionReport& report);
  absl::Status AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                         const base::Cancelled& cancelled);
  absl::StatusOr<std::string> EvalDatasetOf(const ConvertRequest& request, const store::StoredModel& source) const;

  store::StateDirectory& state_;
  TextCache& texts_;
  data::TokenCache& tokens_;
  telemetry::Metrics& metrics_;
  base::Clock& clock_;
  UploadTable& uploads_;
  const kernels::Stream convert_stream_;
  const kernels::Stream serve_stream_;
  const ModelLibraryOptions options_;
  WorkAdmission admission_;
  base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const ExportedFiles>> exports_
      ABSL_GUARDED_BY(mutex_);  // their operations own them
};

}  // namespace nibble::registry
