#include "server/registry/checkpoint_publisher.h"

#include <map>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/registry/model_files.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_mark.h"
#include "server/store/published_directory.h"

namespace nibble::registry {

namespace {

// Whether `model` was made from exactly this checkpoint. If so, a client repeats a request whose answer was lost, for
// example because the server restarted.
bool WasMadeFrom(base::FileSystem& files, const store::StoredModel& model, const std::string& checkpoint,
                 const std::string& directory) {
  const auto info = model::ParseArtifactInfo(model.info);
  const auto manifest = store::ReadManifest(files, directory);
  if (!info.ok() || !manifest.ok() || info->source != "checkpoint") return false;
  const auto says = [&](const char* key) {
    return base::GetString(info->provenance, key, "nibble.json", "").value_or("");
  };
  return says("checkpoint") == checkpoint && says("checkpoint_digest") == manifest->digest;
}

// The job may remove its checkpoint at any time. Then it is missing, not damaged.
absl::Status Gone(const std::string& checkpoint) {
  return base::WithReason(absl::NotFoundError(base::StrCat("checkpoint \"", checkpoint, "\" no longer exists")),
                          "CHECKPOINT", {{"name", checkpoint}});
}

// Another model may have got the base's name since the job was created.
absl::Status CheckBase(const CheckpointSource& source, const store::StoredModel& stored) {
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo base, model::ParseArtifactInfo(stored.info));
  if (source.base_digest.empty() || source.base_digest == base.weights_digest) return absl::OkStatus();
  return base::WithReason(
      absl::FailedPreconditionError(base::StrCat("the job was trained on weights ", source.base_digest, ", model \"",
                                                 source.base_model, "\" now has ", base.weights_digest)),
      "BASE_MISMATCH", {{"got", base.weights_digest}, {"wanted", source.base_digest}});
}

}  // namespace

bool CheckpointPublisher::IsPublished(const PublishRequest& request, const CheckpointSource& source) const {
  const auto made = work_.state.models->Get(request.name);
  return made.ok() && WasMadeFrom(work_.state.files, *made, request.checkpoint, source.directory);
}

absl::Status CheckpointPublisher::Check(const PublishRequest& request, const std::string& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name));
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointSource source, work_.options.find_checkpoint(request.checkpoint, tenant));
  if (IsPublished(request, source)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model,
                          FindModel(*work_.state.models, work_.metrics, source.base_model));
  NIBBLE_RETURN_IF_ERROR(CheckBase(source, base_model));
  return work_.state.models->CheckFree(request.name, tenant);
}

absl::StatusOr<store::Manifest> CheckpointPublisher::CheckCheckpoint(const std::string& checkpoint,
                                                                     const CheckpointSource& source,
                                                                     const base::Cancelled& cancelled) {
  auto verified = store::Verify(work_.state.files, source.directory, cancelled);
  if (verified.ok()) return verified;
  if (!work_.state.files.Exists(source.directory)) return Gone(checkpoint);
  if (!store::SaysDamaged(verified.status())) return verified.status();
  work_.metrics.ArtifactVerifyFailed();
  std::map<std::string, std::string> metadata = base::ReasonMetadata(verified.status());  // the file, its digests
  metadata["checkpoint"] = checkpoint;
  return base::WithReason(absl::DataLossError(verified.status().message()), "CHECKPOINT_CORRUPT", metadata);
}

absl::Status CheckpointPublisher::Publish(const PublishRequest& request, const std::string& tenant,
                                          OperationScope& scope) {
  const base::Cancelled cancelled = scope.stopped();
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointSource source, work_.options.find_checkpoint(request.checkpoint, tenant));
  if (IsPublished(request, source)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model,
                          FindModel(*work_.state.models, work_.metrics, source.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin,
                          work_.state.models->PinModel(source.base_model, "publication of a checkpoint"));
  NIBBLE_RETURN_IF_ERROR(CheckBase(source, base_model));
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, work_.state.models->Begin(request.name, tenant));
  scope.Progress("read", 0, 1);
  NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest, CheckCheckpoint(request.checkpoint, source, cancelled));
  NIBBLE_RETURN_IF_ERROR(CheckModelFiles(*work_.state.models, work_.metrics, source.base_model, cancelled));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(base_model.directory));
  const base::Json provenance = {
      {"job_id", source.job_id},          {"base_model", source.base_model},      {"step", source.step},
      {"checkpoint", request.checkpoint}, {"checkpoint_digest", manifest.digest}, {"eval_data", source.eval_data}};
  const WorkMemory need = source.memory(*artifact, static_cast<std::int64_t>(manifest.total_bytes()));
  NIBBLE_ASSIGN_OR_RETURN(const auto turn,
                          work_.AwaitTurn(base::StrCat("publication of checkpoint ", request.checkpoint), need, scope));
  scope.Progress("write", 0, 1);
  OperationFiles files(work_.state.files, scope, work_.options.upload_limits.min_free_bytes);
  const std::string scratch = base::JoinPath(work_.state.paths.uploads(), base::NewId("publish"));
  const auto made = source.make(files, {*artifact, provenance, scratch, pending->directory()}, work_.convert_stream);
  if (!made.ok()) {
    return work_.state.files.Exists(source.directory) ? base::About(made.status(), request.checkpoint)
                                                      : Gone(request.checkpoint);
  }
  NIBBLE_RETURN_IF_ERROR(MarkMadeBy(work_.state.files, pending->directory(), scope.identity()));
  return pending->Commit(cancelled, files.digests()).status();
}

}  // namespace nibble::registry
