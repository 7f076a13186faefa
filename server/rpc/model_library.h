// What is done with whole models: import, convert, export, verify. Called on workers and by operations.
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
#include "server/rpc/operations.h"
#include "server/rpc/text_cache.h"
#include "server/rpc/upload_table.h"
#include "server/rpc/work_admission.h"
#include "server/serve/model_manager.h"
#include "server/store/state_directory.h"
#include "server/telemetry/metrics.h"

namespace nibble::rpc {

// Where a checkpoint lies and what it was trained on.
struct CheckpointSource {
  std::string directory;
  std::string job_id;
  jobs::JobSpec spec;
  std::int64_t step = 0;
};

struct ModelLibraryOptions {
  std::string import_root;            // "": no path of the server is taken
  store::UploadLimits upload_limits;  // of a model
  std::uint64_t max_tokenizer_bytes = model::kMaxTokenizerBytes;  // of one that is imported
  absl::Duration kept = absl::Hours(1);  // exports
  std::int64_t max_eval_tokens = 16384;  // of a conversion's losses
  std::shared_ptr<base::MemoryBudget> memory = base::MemoryBudget::Make(0);  // shared with served models and trainers
  // The tokens of a data set (data::TokenCache::Get).
  std::function<absl::StatusOr<data::Dataset>(const data::TokenSource&, const base::Cancelled&)> load_tokens;
  // The evaluation set of the job that made a model; "" for none.
  std::function<std::string(const std::string& job_id)> eval_dataset_of_job;
  // By Checkpoint.name, for a caller of this tenant ("": of all). NotFound (CHECKPOINT).
  std::function<absl::StatusOr<CheckpointSource>(const std::string& checkpoint, const std::string& tenant)> find_checkpoint;
};

// Thread-safe.
class ModelLibrary {
 public:
  ModelLibrary(store::StateDirectory& state, serve::ModelManager& manager, TextCache& texts, telemetry::Metrics& metrics,
               base::Clock& clock, UploadTable& uploads, const kernels::Stream& convert_stream, const kernels::Stream& serve_stream,
               ModelLibraryOptions options);

  store::ModelStore& models() { return *state_.models; }
  serve::ModelManager& manager() { return manager_; }
  const ModelLibraryOptions& options() const { return options_; }
  absl::StatusOr<v1::Model> Describe(const std::string& name, bool detailed) const;

  UploadTable& uploads() { return uploads_; }
  absl::StatusOr<std::unique_ptr<store::Upload>> BeginUpload();

  // Checked before the operation begins: names, fields, existence.
  absl::Status CheckImport(const v1::ImportModelRequest& request, const RequestOwner& owner);
  absl::Status CheckConvert(const v1::ConvertModelRequest& request, const std::string& tenant);
  absl::Status CheckExport(const v1::ExportModelRequest& request);
  // `owner`: whose uploads are meant.
  absl::StatusOr<google::protobuf::Any> Import(const v1::ImportModelRequest& request, const RequestOwner& owner, OperationScope& scope);
  absl::StatusOr<google::protobuf::Any> Convert(const v1::ConvertModelRequest& request, OperationScope& scope);
  absl::StatusOr<google::protobuf::Any> Export(const v1::ExportModelRequest& request, OperationScope& scope);
  // OperationTable::Recover: the response of the import, conversion or publication that made `model`. What an export makes does not
  // outlive the server.
  absl::StatusOr<std::optional<google::protobuf::Any>> Recover(const OperationIdentity& operation, const std::string& model);

  // The files of an export, as long as its operation keeps them. NotFound (ARTIFACT).
  struct ExportedFiles {
    std::string directory;
    std::vector<v1::FileEntry> files;
    ~ExportedFiles();  // removes them
  };
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Exported(const std::string& artifact_id);

  // NotFound (MODEL), DataLoss of one that is damaged.
  absl::Status Find(const std::string& name) const;
  // Waits for other work with whole models (WorkAdmission). Errors: NotFound (MODEL), FailedPrecondition (NO_RECORD), DataLoss,
  // Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), those of a load.
  absl::StatusOr<v1::VerifyModelResponse> Verify(const std::string& name, OperationScope& scope);
  // A PublishCheckpointResponse. Waits as Verify does. Errors: NotFound (CHECKPOINT), AlreadyExists (NAME_TAKEN), FailedPrecondition
  // (NOT_SERVABLE), Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY), DataLoss (CHECKPOINT_CORRUPT; of the base ARTIFACT_CORRUPT).
  absl::StatusOr<google::protobuf::Any> PublishCheckpoint(const v1::PublishCheckpointRequest& request, const std::string& tenant,
                                                          OperationScope& scope);
  // Before it begins: the name, the checkpoint and its base.
  absl::Status CheckPublish(const v1::PublishCheckpointRequest& request, const std::string& tenant);

 private:
  // Of what made this model (an import, a conversion, a publication), as the published model tells it.
  absl::StatusOr<google::protobuf::Any> ResponseOf(const std::string& name);
  // The record of a model against its logits now, and the tensors against their digests.
  absl::StatusOr<v1::VerifyModelResponse> Replay(const store::StoredModel& stored, OperationScope& scope);
  // Whether the model of the wanted name was made of this very checkpoint: a repeated request is answered with it.
  bool IsPublished(const v1::PublishCheckpointRequest& request, const CheckpointSource& source) const;
  // The turn of an operation, whose progress says that it waits. `what`: as of WorkAdmission::Await.
  absl::StatusOr<WorkAdmission::Turn> AwaitTurn(const std::string& what, const WorkMemory& need, OperationScope& scope);
  // Of what is at `source`. Both wait as Verify does, before they read tensors.
  absl::Status ImportWeights(const v1::ImportModelRequest& request, const std::string& source, const std::string& target,
                             OperationScope& scope);
  absl::Status ImportAdapter(const v1::ImportModelRequest& request, const std::string& source, const std::string& target,
                             OperationScope& scope);
  absl::Status AddLosses(const v1::ConvertModelRequest& request, const std::string& dataset, const std::string& source,
                         const std::string& target, OperationScope& scope, v1::ConversionReport& report);
  absl::Status AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                         const base::Cancelled& cancelled);
  absl::StatusOr<std::string> EvalDatasetOf(const v1::ConvertModelRequest& request, const store::StoredModel& source) const;

  store::StateDirectory& state_;
  serve::ModelManager& manager_;
  TextCache& texts_;
  telemetry::Metrics& metrics_;
  base::Clock& clock_;
  UploadTable& uploads_;
  const kernels::Stream convert_stream_;
  const kernels::Stream serve_stream_;
  const ModelLibraryOptions options_;
  WorkAdmission admission_;
  base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const ExportedFiles>> exports_ ABSL_GUARDED_BY(mutex_);  // their operations own them
};

}  // namespace nibble::rpc
