#include "server/rpc/model_library.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/model/import.h"
#include "server/model/peft_adapter.h"
#include "server/model/replay.h"
#include "server/registry/import_root.h"
#include "server/registry/model_files.h"
#include "server/registry/model_memory.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_mark.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/status.h"
#include "server/rpc/uploaded_model.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

constexpr std::size_t kMaxSourceName = 4096;  // bytes; the longest path of Linux

// Turns errors in imported files into InvalidArgument (MODEL_FORMAT): they are the caller's fault, whatever code the
// reader used.
absl::Status OfTheFiles(const absl::Status& status) {
  // Other ResourceExhausted errors, such as a full disk or too many open files, are not the caller's fault.
  const bool too_large = absl::IsResourceExhausted(status) && base::Reason(status) == "MALFORMED_FILE";
  const bool file = absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
                    absl::IsUnimplemented(status) || too_large;
  if (!file) return status;
  return base::WithReason(absl::InvalidArgumentError(status.message()), "MODEL_FORMAT",
                          {{"kind", base::Reason(status)}});
}

}  // namespace

ModelLibrary::ModelLibrary(store::StateDirectory& state, serve::ModelManager& manager, registry::TextCache& texts,
                           telemetry::Metrics& metrics, base::Clock& clock, registry::UploadTable& uploads,
                           const kernels::Stream& convert_stream, const kernels::Stream& serve_stream,
                           ModelLibraryOptions options)
    : state_(state),
      manager_(manager),
      texts_(texts),
      metrics_(metrics),
      clock_(clock),
      uploads_(uploads),
      convert_stream_(convert_stream),
      serve_stream_(serve_stream),
      options_(std::move(options)),
      admission_(options_.memory) {}

absl::StatusOr<v1::Model> ModelLibrary::Describe(const std::string& name, bool detailed) const {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, registry::FindModel(*state_.models, metrics_, name));
  auto model = ToProto(stored, manager_.IsLoaded(name), detailed);
  if (model.ok() || !store::SaysDamaged(model.status())) return model;
  NIBBLE_RETURN_IF_ERROR(state_.models->Get(name).status());  // the model may have been deleted since
  return registry::ReportDamaged(metrics_, name, model.status());
}

absl::StatusOr<std::unique_ptr<store::Upload>> ModelLibrary::BeginUpload() {
  return store::Upload::Begin(state_.files, state_.paths, options_.upload_limits);
}

absl::Status ModelLibrary::CheckImport(const v1::ImportModelRequest& request, const auth::RequestOwner& owner) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name()));
  if (request.dtype() != v1::MODEL_FORMAT_UNSPECIFIED && request.dtype() != v1::MODEL_FORMAT_F32 &&
      request.dtype() != v1::MODEL_FORMAT_BF16) {
    return FieldError("dtype", "wanted F32 or BF16");
  }
  if (request.has_base_model()) {
    if (request.dtype() != v1::MODEL_FORMAT_UNSPECIFIED) {
      return FieldError("dtype", "must not be set for adapters, which are stored in f32");
    }
    if (request.has_source_name()) return FieldError("source_name", "must not be set for adapters");
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model,
                            registry::FindModel(*state_.models, metrics_, request.base_model()));
    NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(base_model.info));
    NIBBLE_RETURN_IF_ERROR(base::About(convert::CheckAdapterBase(info), request.base_model()));
  }
  if (request.source_name().size() > kMaxSourceName) {
    return FieldError("source_name",
                      StrCat("has ", request.source_name().size(), " bytes, wanted at most ", kMaxSourceName));
  }
  NIBBLE_RETURN_IF_ERROR(state_.models->CheckFree(request.name(), owner.tenant));
  if (request.source_case() == v1::ImportModelRequest::SOURCE_NOT_SET) {
    return FieldError("source", "is not set, wanted upload_id or server_path");
  }
  if (request.has_server_path())
    return registry::BeneathPath::Open(options_.import_root, request.server_path()).status();
  return uploads_.CheckFinished(owner, request.upload_id());
}

absl::StatusOr<operations::OperationResponse> ModelLibrary::Import(const v1::ImportModelRequest& request,
                                                                   const auth::RequestOwner& owner,
                                                                   registry::OperationScope& scope) {
  registry::UploadTable::Taken upload;
  std::unique_ptr<registry::BeneathPath> beneath;
  std::string source;
  // Before taking the upload: if the name is taken, the disk full or the base damaged, the upload remains for a retry.
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, state_.models->Begin(request.name()));
  scope.Progress("read", 0, 1);
  std::shared_ptr<const store::Pin> pin;
  if (request.has_base_model()) {
    NIBBLE_ASSIGN_OR_RETURN(pin, state_.models->PinModel(request.base_model(), "an import of an adapter"));
    NIBBLE_RETURN_IF_ERROR(registry::CheckModelFiles(*state_.models, metrics_, request.base_model(), scope.stopped()));
  }
  if (request.has_server_path()) {
    NIBBLE_ASSIGN_OR_RETURN(beneath, registry::BeneathPath::Open(options_.import_root, request.server_path()));
    source = beneath->path();
  } else {
    NIBBLE_ASSIGN_OR_RETURN(upload, uploads_.TakeFinished(owner, request.upload_id()));
    source = static_cast<const UploadedModel&>(*upload.content).directory();
  }
  const absl::Status imported = request.has_base_model() ? ImportAdapter(request, source, pending->directory(), scope)
                                                         : ImportWeights(request, source, pending->directory(), scope);
  // Memory may become free later: keep the upload for a retry.
  if (upload.entry != nullptr && base::Reason(imported) == "OUT_OF_DEVICE_MEMORY") uploads_.PutBack(upload);
  NIBBLE_RETURN_IF_ERROR(imported);
  scope.Progress("write", 0, 1);
  NIBBLE_RETURN_IF_ERROR(registry::MarkMadeBy(state_.files, pending->directory(), scope.identity()));
  NIBBLE_RETURN_IF_ERROR(pending->Commit(scope.stopped()).status());
  return ResponseOf(request.name());
}

absl::StatusOr<operations::OperationResponse> ModelLibrary::ResponseOf(const std::string& name) {
  NIBBLE_ASSIGN_OR_RETURN(v1::Model model, Describe(name, /*detailed=*/true));
  if (model.origin() == v1::MODEL_ORIGIN_CONVERT) {
    v1::ConvertModelResponse response;
    *response.mutable_report() = model.conversion();
    model.mutable_conversion()->clear_layers();
    *response.mutable_model() = std::move(model);
    return Packed(response);
  } else if (model.origin() == v1::MODEL_ORIGIN_CHECKPOINT) {
    v1::PublishCheckpointResponse response;
    *response.mutable_model() = std::move(model);
    *response.mutable_residents() = ToProto(manager_);
    return Packed(response);
  }
  return Packed(model);
}

absl::StatusOr<std::optional<operations::OperationResponse>> ModelLibrary::Recover(
    const registry::OperationIdentity& operation, const std::string& model) {
  const auto stored = state_.models->Get(model);
  if (absl::IsNotFound(stored.status())) return std::optional<operations::OperationResponse>();
  NIBBLE_RETURN_IF_ERROR(stored.status());
  if (!registry::IsMadeBy(*stored, operation)) return std::optional<operations::OperationResponse>();
  // The server may have been killed before it synced the rename.
  NIBBLE_RETURN_IF_ERROR(state_.files.SyncDirectory(state_.paths.models()));
  NIBBLE_ASSIGN_OR_RETURN(operations::OperationResponse response, ResponseOf(model));
  base::LogInfo("operation recovered", {{"name", operation.name}, {"model", model}});
  return std::optional<operations::OperationResponse>(std::move(response));
}

absl::Status ModelLibrary::ImportWeights(const v1::ImportModelRequest& request, const std::string& source,
                                         const std::string& target, registry::OperationScope& scope) {
  const auto has = [&](const char* name) { return state_.files.Exists(base::JoinPath(source, name)); };
  if (has(model::kAdapterConfigFile) && !has("config.json")) {
    return FieldError("base_model", "is not set, wanted the base model of the adapter");
  }
  const kernels::DType dtype = request.dtype() == v1::MODEL_FORMAT_F32 ? kernels::DType::kF32 : kernels::DType::kBF16;
  registry::OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  // Wait for a turn, as conversions do: otherwise an import would be refused memory that a running verification or
  // publication will return. Conversions and imports never run together anyway (OperationLane::kModels).
  registry::WorkAdmission::Turn turn;
  const auto admit = [&](std::int64_t bytes) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(turn, AwaitTurn(StrCat("import of model ", request.name()), {.buffers = bytes}, scope));
    scope.Progress("read", 0, 1);  // AwaitTurn may have set "wait"
    return absl::OkStatus();
  };
  auto report = model::ImportModel(files, source, target, dtype, options_.max_tokenizer_bytes, admit);
  if (!report.ok()) return base::About(OfTheFiles(report.status()), request.name());
  if (request.source_name().empty()) return absl::OkStatus();
  report->info.provenance[model::kSourceName] = request.source_name();
  return model::WriteArtifactInfo(files, target, report->info);
}

absl::Status ModelLibrary::ImportAdapter(const v1::ImportModelRequest& request, const std::string& source,
                                         const std::string& target, registry::OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, state_.models->Get(request.base_model()));
  NIBBLE_ASSIGN_OR_RETURN(const auto base_model, model::Artifact::Open(stored.directory));
  registry::WorkAdmission::Turn turn;
  const auto admit = [&](std::int64_t bytes) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(turn, AwaitTurn(StrCat("import of an adapter on model ", request.base_model()),
                                            registry::AdapterMemory(*base_model, bytes), scope));
    return absl::OkStatus();
  };
  auto adapter = model::ReadPeftAdapter(state_.files, source, base_model->config(), admit);
  if (!adapter.ok()) return base::About(OfTheFiles(adapter.status()), request.base_model());
  std::string& base_name = adapter->config.base_model_name_or_path;
  const std::string source_name = model::SourceName(base_model->info());
  if (!source_name.empty()) base_name = source_name;
  if (base_name.empty()) base_name = request.base_model();
  if (base_model->info().format != model::Format::kNf4) scope.Progress("quantize", 0, 1);
  const base::Json provenance = {{"imported_from", "peft"}, {"base_model", request.base_model()}};
  registry::OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  const auto made = convert::MakeAdapterModel(files, *base_model, *std::move(adapter), provenance,
                                              base::JoinPath(state_.paths.uploads(), base::NewId("import")), target,
                                              convert_stream_, "import");
  return base::About(made.status(), request.base_model());
}

absl::Status ModelLibrary::Find(const std::string& name) const {
  return registry::FindModel(*state_.models, metrics_, name).status();
}

absl::StatusOr<v1::VerifyModelResponse> ModelLibrary::Verify(const std::string& name, registry::OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, registry::FindModel(*state_.models, metrics_, name));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, state_.models->PinModel(name, "verify"));
  auto replayed = Replay(stored, scope);
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored.info));
  const bool promised = info.determinism() == model::Determinism::kBitwise;
  if (absl::IsDataLoss(replayed.status())) {
    metrics_.ArtifactVerifyFailed();
    return replayed;
  }
  if (absl::IsCancelled(replayed.status()) || absl::IsResourceExhausted(replayed.status())) return replayed;
  if (!replayed.ok() && !promised) return replayed;  // it never had a record
  // Check the manifest too: an unreadable file may have been altered, and logits can be equal although a file was
  // altered (a weight that no token of the record reaches). The answer reports differing rows; the log says whether the
  // files differ.
  const absl::Status files = registry::CheckModelFiles(*state_.models, metrics_, name, scope.stopped());
  const bool differs = replayed.ok() && replayed->differing_rows() > 0;
  if (absl::IsCancelled(files) || (!files.ok() && !differs)) return files;
  if (differs && files.ok()) {
    metrics_.ArtifactVerifyFailed();
    base::LogError("a model with intact files gives different logits than recorded", {{"model", name}});
  }
  return replayed;
}

absl::StatusOr<registry::WorkAdmission::Turn> ModelLibrary::AwaitTurn(const std::string& what,
                                                                      const registry::WorkMemory& need,
                                                                      registry::OperationScope& scope) {
  return admission_.Await(what, need, scope.stopped(), [&scope] { scope.Progress("wait", 0, 1); });
}

absl::StatusOr<v1::VerifyModelResponse> ModelLibrary::Replay(const store::StoredModel& stored,
                                                             registry::OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const model::Record record, model::ReadRecord(state_.files, stored.directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(stored.directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto turn, AwaitTurn(StrCat("verify of model ", stored.name),
                                                     registry::ReplayMemory(*artifact, record), scope));
  scope.Progress("verify", 0, 1);
  // Read the model from the disk again, to verify what a restarted server would serve.
  const base::Cancelled cancelled = scope.stopped();
  NIBBLE_ASSIGN_OR_RETURN(const auto loaded,
                          model::LoadedModel::Load(stored.directory, {.cancelled = cancelled}, serve_stream_));
  NIBBLE_ASSIGN_OR_RETURN(const model::ReplayResult replay,
                          model::ReplayRecord(*loaded, record, serve_stream_, cancelled));
  v1::VerifyModelResponse response;
  response.set_equal(replay.equal && replay.rows > 0);
  response.set_rows(static_cast<std::int32_t>(replay.rows));
  response.set_differing_rows(static_cast<std::int32_t>(replay.differing_rows));
  response.set_recorded_by(loaded->info().recorded_by);
  response.set_device(v1::DEVICE_KIND_CPU);
  response.set_digest(loaded->info().weights_digest);
  if (replay.differing_rows > 0) {
    auto* difference = response.mutable_first_difference();
    std::int64_t row = replay.first_position;
    for (std::int64_t s = 0; s < replay.first_sequence; ++s) {
      row += static_cast<std::int64_t>(record.sequences[static_cast<std::size_t>(s)].row_digests.size());
    }
    const auto& sequence = record.sequences[static_cast<std::size_t>(replay.first_sequence)];
    const auto position = static_cast<std::size_t>(replay.first_position);
    difference->set_row(static_cast<std::int32_t>(row));
    difference->set_token_id(sequence.token_ids[position]);
    difference->set_recorded_digest(sequence.row_digests[position]);
    NIBBLE_ASSIGN_OR_RETURN(const model::Record again,
                            model::MakeRecord(*loaded, {sequence.token_ids}, serve_stream_, cancelled));
    difference->set_computed_digest(again.sequences.front().row_digests[position]);
    return response;
  }
  // Files that match the manifest may still come from two models. Check the digests of the tensors and of the record.
  NIBBLE_RETURN_IF_ERROR(artifact->VerifyBytes(cancelled));
  if (record.weights_digest != loaded->info().weights_digest) {
    return base::WithReason(absl::DataLossError("record.bin was made from other weights"), "ARTIFACT_CORRUPT");
  }
  return response;
}

}  // namespace nibble::rpc
