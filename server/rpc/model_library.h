// Work on whole models: import, convert, export, verify, publish. Called on workers and by operations.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/cancelled.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/memory_budget.h"
#include "server/base/mutex.h"
#include "server/data/token_file.h"
#include "server/jobs/job_spec.h"
#include "server/operations/operation_table.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/registry/work_admission.h"
#include "server/serve/model_manager.h"
#include "server/store/state_directory.h"
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

// Directory of a checkpoint, and the job that made it.
struct CheckpointSource {
  std::string directory;
  std::string job_id;
  jobs::JobSpec spec;
  std::int64_t step = 0;
};

struct ModelLibraryOptions {
  std::string import_root;                                                   // "": server paths are refused
  store::UploadLimits upload_limits;                                         // of a model
  std::uint64_t max_tokenizer_bytes = model::kMaxTokenizerBytes;             // of an imported tokenizer.json
  absl::Duration kept = absl::Hours(1);                                      // how long exports are kept
  std::int64_t max_eval_tokens = 16384;                                      // for a conversion's losses
  std::shared_ptr<base::MemoryBudget> memory = base::MemoryBudget::Make(0);  // shared with served models and trainers
  // Returns the tokens of a dataset (data::TokenCache::Get).
  std::function<absl::StatusOr<data::Dataset>(const data::TokenSource&, const base::Cancelled&)> load_tokens;
  // Returns the dataset that a job evaluated, or held rows out of ("held_out" in its model's provenance); "" for none.
  std::function<std::string(const std::string& job_id)> eval_dataset_of_job;
  // Finds a checkpoint by Checkpoint.name for a caller of `tenant` ("": sees all tenants). Errors: NotFound
  // (CHECKPOINT).
  std::function<absl::StatusOr<CheckpointSource>(const std::string& checkpoint, const std::string& tenant)>
      find_checkpoint;
};

// Thread-safe.
class ModelLibrary {
 public:
  ModelLibrary(store::StateDirectory& state, serve::ModelManager& manager, registry::TextCache& texts,
               telemetry::Metrics& metrics, base::Clock& clock, registry::UploadTable& uploads,
               const kernels::Stream& convert_stream, const kernels::Stream& serve_stream, ModelLibraryOptions options);

  store::ModelStore& models() { return *state_.models; }
  serve::ModelManager& manager() { return manager_; }
  const ModelLibraryOptions& options() const { return options_; }
  absl::StatusOr<v1::Model> Describe(const std::string& name, bool detailed) const;

  registry::UploadTable& uploads() { return uploads_; }
  absl::StatusOr<std::unique_ptr<store::Upload>> BeginUpload();

  // Checks before the operation begins: names, fields, existence.
  absl::Status CheckImport(const v1::ImportModelRequest& request, const auth::RequestOwner& owner);
  absl::Status CheckConvert(const v1::ConvertModelRequest& request, const std::string& tenant);
  absl::Status CheckExport(const v1::ExportModelRequest& request);
  // `owner`: the caller, whose uploads `request` may name.
  absl::StatusOr<operations::OperationResponse> Import(const v1::ImportModelRequest& request,
                                                       const auth::RequestOwner& owner,
                                                       registry::OperationScope& scope);
  absl::StatusOr<operations::OperationResponse> Convert(const v1::ConvertModelRequest& request,
                                                        registry::OperationScope& scope);
  absl::StatusOr<operations::OperationResponse> Export(const v1::ExportModelRequest& request,
                                                       registry::OperationScope& scope);
  // For operations::OperationTable::Recover: the response of the import, conversion or publication that made `model`.
  // Exports do not outlive the server.
  absl::StatusOr<std::optional<operations::OperationResponse>> Recover(const registry::OperationIdentity& operation,
                                                                       const std::string& model);

  // The files of an export, which its operation owns. Errors: NotFound (ARTIFACT).
  struct ExportedFiles {
    std::string directory;
    std::vector<v1::FileEntry> files;
    ~ExportedFiles();  // removes the files
  };
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Exported(const std::string& artifact_id);

  // Errors: NotFound (MODEL), DataLoss (a damaged model).
  absl::Status Find(const std::string& name) const;
  // Waits for other work with whole models (WorkAdmission). Errors: NotFound (MODEL), FailedPrecondition (NO_RECORD),
  // DataLoss, Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), those of a load.
  absl::StatusOr<v1::VerifyModelResponse> Verify(const std::string& name, registry::OperationScope& scope);
  // Returns a PublishCheckpointResponse. Waits as Verify does. Errors: NotFound (CHECKPOINT), AlreadyExists
  // (NAME_TAKEN), FailedPrecondition (NOT_SERVABLE), Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), DataLoss
  // (CHECKPOINT_CORRUPT; for the base ARTIFACT_CORRUPT).
  absl::StatusOr<operations::OperationResponse> PublishCheckpoint(const v1::PublishCheckpointRequest& request,
                                                                  const std::string& tenant,
                                                                  registry::OperationScope& scope);
  // Checks the name, the checkpoint and its base before the operation begins.
  absl::Status CheckPublish(const v1::PublishCheckpointRequest& request, const std::string& tenant);

 private:
  // The response of the operation that made this model (import, conversion or publication), built from the stored
  // model.
  absl::StatusOr<operations::OperationResponse> ResponseOf(const std::string& name);
  // Compares the model's record with its logits now, and its tensors with their digests.
  absl::StatusOr<v1::VerifyModelResponse> Replay(const store::StoredModel& stored, registry::OperationScope& scope);
  // Whether the model of that name was made from exactly this checkpoint. It is then the answer to a repeated request.
  bool IsPublished(const v1::PublishCheckpointRequest& request, const CheckpointSource& source) const;
  // Waits for the operation's turn; the progress shows "wait" meanwhile. `what`: as for WorkAdmission::Await.
  absl::StatusOr<registry::WorkAdmission::Turn> AwaitTurn(const std::string& what, const registry::WorkMemory& need,
                                                          registry::OperationScope& scope);
  // Import the files in the directory `source`. Both wait as Verify does, before they read tensors.
  absl::Status ImportWeights(const v1::ImportModelRequest& request, const std::string& source,
                             const std::string& target, registry::OperationScope& scope);
  absl::Status ImportAdapter(const v1::ImportModelRequest& request, const std::string& source,
                             const std::string& target, registry::OperationScope& scope);
  absl::Status AddLosses(const v1::ConvertModelRequest& request, const std::string& dataset, const std::string& source,
                         const std::string& target, registry::OperationScope& scope, v1::ConversionReport& report);
  absl::Status AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                         const base::Cancelled& cancelled);
  absl::StatusOr<std::string> EvalDatasetOf(const v1::ConvertModelRequest& request,
                                            const store::StoredModel& source) const;

  store::StateDirectory& state_;
  serve::ModelManager& manager_;
  registry::TextCache& texts_;
  telemetry::Metrics& metrics_;
  base::Clock& clock_;
  registry::UploadTable& uploads_;
  const kernels::Stream convert_stream_;
  const kernels::Stream serve_stream_;
  const ModelLibraryOptions options_;
  registry::WorkAdmission admission_;
  base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const ExportedFiles>> exports_
      ABSL_GUARDED_BY(mutex_);  // their operations own them
};

}  // namespace nibble::rpc
