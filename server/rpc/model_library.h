// What is done with whole models: import, convert, export, verify. Called on workers and by operations.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/mutex.h"
#include "server/jobs/job_spec.h"
#include "server/rpc/operations.h"
#include "server/rpc/text_cache.h"
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
  absl::Duration kept = absl::Hours(1);  // uploads and exports
  std::int64_t max_eval_tokens = 16384;  // of a conversion's losses
  // The evaluation set of the job that made a model; "" for none.
  std::function<std::string(const std::string& job_id)> eval_dataset_of_job;
  // By Checkpoint.name, for a caller of this tenant ("": of all). NotFound (CHECKPOINT).
  std::function<absl::StatusOr<CheckpointSource>(const std::string& checkpoint, const std::string& tenant)> find_checkpoint;
};

// Thread-safe.
class ModelLibrary {
 public:
  ModelLibrary(store::StateDirectory& state, serve::ModelManager& manager, TextCache& texts, telemetry::Metrics& metrics,
               base::Clock& clock, const kernels::Stream& convert_stream, const kernels::Stream& serve_stream,
               ModelLibraryOptions options);

  store::ModelStore& models() { return *state_.models; }
  serve::ModelManager& manager() { return manager_; }
  const ModelLibraryOptions& options() const { return options_; }
  absl::StatusOr<v1::Model> Describe(const std::string& name, bool detailed) const;

  absl::StatusOr<std::unique_ptr<store::Upload>> BeginUpload();
  // Keeps what was uploaded; the id of UploadModelResponse and when it goes.
  v1::UploadModelResponse KeepUpload(std::unique_ptr<store::Upload> upload);

  // Checked before the operation begins: names, fields, existence.
  absl::Status CheckImport(const v1::ImportModelRequest& request);
  absl::Status CheckConvert(const v1::ConvertModelRequest& request);
  absl::Status CheckExport(const v1::ExportModelRequest& request);
  absl::StatusOr<google::protobuf::Any> Import(const v1::ImportModelRequest& request, OperationScope& scope);
  absl::StatusOr<google::protobuf::Any> Convert(const v1::ConvertModelRequest& request, OperationScope& scope);
  absl::StatusOr<google::protobuf::Any> Export(const v1::ExportModelRequest& request, OperationScope& scope);

  // The files of an export. NotFound (ARTIFACT).
  struct ExportedFiles {
    std::string directory;
    std::vector<v1::FileEntry> files;
    ~ExportedFiles();  // removes them
  };
  absl::StatusOr<std::shared_ptr<const ExportedFiles>> Exported(const std::string& artifact_id);

  // Errors: NotFound (MODEL), FailedPrecondition (NO_RECORD), DataLoss, Cancelled, those of a load.
  absl::StatusOr<v1::VerifyModelResponse> Verify(const std::string& name, const store::Cancelled& cancelled);
  // Errors: NotFound (CHECKPOINT), AlreadyExists (NAME_TAKEN), FailedPrecondition (NOT_SERVABLE), Cancelled, DataLoss
  // (CHECKPOINT_CORRUPT; of the base ARTIFACT_CORRUPT).
  absl::StatusOr<v1::Model> PublishCheckpoint(const v1::PublishCheckpointRequest& request, const std::string& tenant,
                                              const store::Cancelled& cancelled);

 private:
  struct KeptUpload {
    std::shared_ptr<store::Upload> upload;
    absl::Duration until;
  };
  struct KeptExport {
    std::shared_ptr<const ExportedFiles> files;
    absl::Duration until;
  };
  void DropOld();
  // The record of a model against its logits now, and the tensors against their digests.
  absl::StatusOr<v1::VerifyModelResponse> Replay(const store::StoredModel& stored);
  absl::Status ImportAdapter(const v1::ImportModelRequest& request, const std::string& source, const std::string& target,
                             OperationScope& scope);
  absl::Status AddLosses(const v1::ConvertModelRequest& request, const std::string& dataset, const std::string& source,
                         const std::string& target, OperationScope& scope, v1::ConversionReport& report);
  absl::Status AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info);
  absl::StatusOr<std::string> EvalDatasetOf(const v1::ConvertModelRequest& request, const store::StoredModel& source) const;

  store::StateDirectory& state_;
  serve::ModelManager& manager_;
  TextCache& texts_;
  telemetry::Metrics& metrics_;
  base::Clock& clock_;
  const kernels::Stream convert_stream_;
  const kernels::Stream serve_stream_;
  const ModelLibraryOptions options_;
  base::Mutex mutex_;
  std::map<std::string, KeptUpload> uploads_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, KeptExport> exports_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::rpc
