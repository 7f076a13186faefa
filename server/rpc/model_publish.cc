// ModelLibrary: publishes a checkpoint as a model while its job continues.
#include <map>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/plan/method_plan.h"
#include "server/registry/model_files.h"
#include "server/rpc/model_library.h"
#include "server/rpc/operation_files.h"
#include "server/rpc/operation_mark.h"
#include "server/store/published_directory.h"

namespace nibble::rpc {

namespace {

// Whether `model` was made from exactly this checkpoint. A client retries when it lost the answer, for example because
// the server restarted.
bool IsOf(base::FileSystem& files, const store::StoredModel& model, const std::string& checkpoint,
          const std::string& directory) {
  const auto info = model::ParseArtifactInfo(model.info);
  const auto manifest = store::ReadManifest(files, directory);
  if (!info.ok() || !manifest.ok() || info->source != "checkpoint") return false;
  const auto says = [&](const char* key) {
    return base::GetString(info->provenance, key, "nibble.json", "").value_or("");
  };
  return says("checkpoint") == checkpoint && says("checkpoint_digest") == manifest->digest;
}

}  // namespace

bool ModelLibrary::IsPublished(const v1::PublishCheckpointRequest& request, const CheckpointSource& source) const {
  const auto made = state_.models->Get(request.name());
  return made.ok() && IsOf(state_.files, *made, request.checkpoint(), source.directory);
}

absl::Status ModelLibrary::CheckPublish(const v1::PublishCheckpointRequest& request, const std::string& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name()));
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointSource source, options_.find_checkpoint(request.checkpoint(), tenant));
  if (IsPublished(request, source)) return absl::OkStatus();
  NIBBLE_RETURN_IF_ERROR(Find(source.spec.base_model));
  return state_.models->CheckFree(request.name(), tenant);
}

absl::StatusOr<google::protobuf::Any> ModelLibrary::PublishCheckpoint(const v1::PublishCheckpointRequest& request,
                                                                      const std::string& tenant,
                                                                      OperationScope& scope) {
  const base::Cancelled cancelled = scope.stopped();
  NIBBLE_ASSIGN_OR_RETURN(const CheckpointSource source, options_.find_checkpoint(request.checkpoint(), tenant));
  if (IsPublished(request, source)) return ResponseOf(request.name());
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model,
                          registry::FindModel(*state_.models, metrics_, source.spec.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin,
                          state_.models->PinModel(source.spec.base_model, "publication of a checkpoint"));
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, state_.models->Begin(request.name(), tenant));
  scope.Progress("read", 0, 1);
  // Verify every byte before using any. If the job removes the checkpoint meanwhile, it is missing, not damaged.
  const auto missing = [&] { return !state_.files.Exists(source.directory); };
  const auto gone = [&] {
    return base::WithReason(
        absl::NotFoundError(base::StrCat("checkpoint \"", request.checkpoint(), "\" no longer exists")), "CHECKPOINT",
        {{"name", request.checkpoint()}});
  };
  const auto verified = store::Verify(state_.files, source.directory, cancelled);
  if (!verified.ok()) {
    if (missing()) return gone();
    if (!store::SaysDamaged(verified.status())) return verified.status();
    metrics_.ArtifactVerifyFailed();
    std::map<std::string, std::string> metadata = base::ReasonMetadata(verified.status());  // the file, its digests
    metadata["checkpoint"] = request.checkpoint();
    return base::WithReason(absl::DataLossError(verified.status().message()), "CHECKPOINT_CORRUPT", metadata);
  }
  NIBBLE_RETURN_IF_ERROR(registry::CheckModelFiles(*state_.models, metrics_, source.spec.base_model, cancelled));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(base_model.directory));
  const base::Json provenance = {{"job_id", source.job_id},
                                 {"base_model", source.spec.base_model},
                                 {"step", source.step},
                                 {"checkpoint", request.checkpoint()},
                                 {"checkpoint_digest", verified->digest},
                                 {"eval_data", jobs::EvalDataJson(source.spec)}};
  const plan::MethodPlan& method = plan::PlanOf(source.spec);
  const registry::WorkMemory need =
      method.CheckpointMemory(source.spec, *artifact, static_cast<std::int64_t>(verified->total_bytes()));
  NIBBLE_ASSIGN_OR_RETURN(const auto turn,
                          AwaitTurn(base::StrCat("publication of checkpoint ", request.checkpoint()), need, scope));
  scope.Progress("write", 0, 1);
  OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  const std::string scratch = base::JoinPath(state_.paths.uploads(), base::NewId("publish"));
  const auto made = method.MakeCheckpointModel(
      files, {source.spec, *artifact, source.directory, provenance, scratch, pending->directory()}, convert_stream_);
  if (!made.ok()) return missing() ? gone() : base::About(made.status(), request.checkpoint());
  NIBBLE_RETURN_IF_ERROR(MarkMadeBy(state_.files, pending->directory(), scope.identity()));
  NIBBLE_RETURN_IF_ERROR(pending->Commit(cancelled).status());
  return ResponseOf(request.name());
}

}  // namespace nibble::rpc
