#pragma once
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/registry/checkpoint_source.h"
#include "server/registry/model_requests.h"
#include "server/registry/model_work.h"
#include "server/registry/operation_scope.h"
#include "server/store/published_directory.h"

namespace nibble::registry {

// Makes models of the checkpoints of jobs. Thread-safe; the argument is borrowed.
class CheckpointPublisher {
 public:
  explicit CheckpointPublisher(const ModelWork& work) : work_(work) {}

  // Checks the name, the checkpoint and the digest of its base before the operation begins.
  absl::Status Check(const PublishRequest& request, const std::string& tenant);
  // OK also if the model exists already and was made from exactly this checkpoint. Waits for other work with whole
  // models (WorkAdmission). Errors: NotFound (CHECKPOINT; for the base MODEL), AlreadyExists (NAME_TAKEN),
  // FailedPrecondition (NOT_SERVABLE, BASE_MISMATCH), Cancelled, ResourceExhausted (OUT_OF_DEVICE_MEMORY, DISK_FULL),
  // DataLoss (CHECKPOINT_CORRUPT; for the base ARTIFACT_CORRUPT).
  absl::Status Publish(const PublishRequest& request, const std::string& tenant, OperationScope& scope);

 private:
  // Whether a model named request.name exists and was made from exactly this checkpoint: a repeated request then
  // succeeds.
  bool IsPublished(const PublishRequest& request, const CheckpointSource& source) const;
  // Compares every byte of the checkpoint with its manifest. Errors: NotFound (CHECKPOINT), DataLoss
  // (CHECKPOINT_CORRUPT), Cancelled.
  absl::StatusOr<store::Manifest> CheckCheckpoint(const std::string& checkpoint, const CheckpointSource& source,
                                                  const base::Cancelled& cancelled);

  const ModelWork& work_;
};

}  // namespace nibble::registry
