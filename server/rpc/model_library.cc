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
#include "server/rpc/import_root.h"
#include "server/rpc/model_files.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/operation_files.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

// What a file lacks or lies about is the caller's fault, whatever the reader called it.
absl::Status OfTheFiles(const absl::Status& status) {
  // A full disk is not, and too many open files are not.
  const bool too_large = absl::IsResourceExhausted(status) && base::Reason(status) == "MALFORMED_FILE";
  const bool file = absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
                    absl::IsUnimplemented(status) || too_large;
  if (!file) return status;
  return base::WithReason(absl::InvalidArgumentError(status.message()), "MODEL_FORMAT", {{"kind", base::Reason(status)}});
}

}  // namespace

ModelLibrary::ModelLibrary(store::StateDirectory& state, serve::ModelManager& manager, TextCache& texts,
                           telemetry::Metrics& metrics, base::Clock& clock, const kernels::Stream& convert_stream,
                           const kernels::Stream& serve_stream, ModelLibraryOptions options)
    : state_(state), manager_(manager), texts_(texts), metrics_(metrics), clock_(clock), convert_stream_(convert_stream),
      serve_stream_(serve_stream), options_(std::move(options)) {}

absl::StatusOr<v1::Model> ModelLibrary::Describe(const std::string& name, bool detailed) const {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, FindModel(*state_.models, metrics_, name));
  auto model = ToProto(stored, manager_.IsLoaded(name), detailed);
  if (model.ok() || !store::SaysDamaged(model.status())) return model;
  NIBBLE_RETURN_IF_ERROR(state_.models->Get(name).status());  // it may have been deleted since
  return TellDamaged(metrics_, name, model.status());
}

absl::StatusOr<std::unique_ptr<store::Upload>> ModelLibrary::BeginUpload() {
  DropOld();
  return store::Upload::Begin(state_.files, state_.layout, options_.upload_limits);
}

v1::UploadModelResponse ModelLibrary::KeepUpload(std::unique_ptr<store::Upload> upload) {
  v1::UploadModelResponse response;
  response.set_upload_id(base::NewId("upload"));
  *response.mutable_expire_time() = ToProto(clock_.Now() + options_.kept);
  base::MutexLock lock(mutex_);
  uploads_[response.upload_id()] = {std::move(upload), clock_.Monotonic() + options_.kept};
  return response;
}

void ModelLibrary::DropOld() {
  const absl::Duration now = clock_.Monotonic();
  std::vector<KeptUpload> uploads;  // what removes files goes after the lock
  std::vector<KeptExport> exports;
  base::MutexLock lock(mutex_);
  for (auto it = uploads_.begin(); it != uploads_.end();) {
    if (it->second.until > now) { ++it; continue; }
    uploads.push_back(std::move(it->second));
    it = uploads_.erase(it);
  }
  for (auto it = exports_.begin(); it != exports_.end();) {
    if (it->second.until > now) { ++it; continue; }
    exports.push_back(std::move(it->second));
    it = exports_.erase(it);
  }
}

absl::Status ModelLibrary::CheckImport(const v1::ImportModelRequest& request) {
  DropOld();
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name()));
  if (request.dtype() != v1::MODEL_FORMAT_UNSPECIFIED && request.dtype() != v1::MODEL_FORMAT_F32 &&
      request.dtype() != v1::MODEL_FORMAT_BF16) {
    return FieldError("dtype", "wanted F32 or BF16");
  }
  if (request.has_base_model()) {
    if (request.dtype() != v1::MODEL_FORMAT_UNSPECIFIED) return FieldError("dtype", "is not for adapters, which are kept in f32");
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, FindModel(*state_.models, metrics_, request.base_model()));
    NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(base_model.info));
    NIBBLE_RETURN_IF_ERROR(base::About(convert::CheckAdapterBase(info), request.base_model()));
  }
  NIBBLE_RETURN_IF_ERROR(state_.models->CheckFree(request.name()));
  if (request.source_case() == v1::ImportModelRequest::SOURCE_NOT_SET) {
    return FieldError("source", "is not set, wanted upload_id or server_path");
  }
  if (request.has_server_path()) return BeneathPath::Open(options_.import_root, request.server_path()).status();
  base::MutexLock lock(mutex_);
  if (uploads_.contains(request.upload_id())) return absl::OkStatus();
  return base::WithReason(absl::NotFoundError("upload_id: there is no such upload; one is kept for an hour, and used once"), "UPLOAD",
                          {{"name", request.upload_id().substr(0, 64)}});
}

absl::StatusOr<google::protobuf::Any> ModelLibrary::Import(const v1::ImportModelRequest& request, OperationScope& scope) {
  std::shared_ptr<store::Upload> upload;
  std::unique_ptr<BeneathPath> beneath;
  std::string source;
  // First: where the name is taken, the disk is full or the base is damaged, the upload stays for another try.
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, state_.models->Begin(request.name()));
  scope.Progress("read", 0, 1);
  std::shared_ptr<const store::Pin> pin;
  if (request.has_base_model()) {
    NIBBLE_ASSIGN_OR_RETURN(pin, state_.models->PinModel(request.base_model(), "an import of an adapter"));
    NIBBLE_RETURN_IF_ERROR(CheckModelFiles(*state_.models, metrics_, request.base_model(), scope.stopped()));
  }
  if (request.has_server_path()) {
    NIBBLE_ASSIGN_OR_RETURN(beneath, BeneathPath::Open(options_.import_root, request.server_path()));
    source = beneath->path();
  } else {
    base::MutexLock lock(mutex_);
    const auto it = uploads_.find(request.upload_id());
    if (it == uploads_.end()) {
      return base::WithReason(absl::NotFoundError("upload_id: the upload has expired"), "UPLOAD",
                              {{"name", request.upload_id().substr(0, 64)}});
    }
    upload = std::move(it->second.upload);
    uploads_.erase(it);
    source = upload->directory();
  }
  if (request.has_base_model()) {
    NIBBLE_RETURN_IF_ERROR(ImportAdapter(request, source, pending->directory(), scope));
  } else {
    const auto has = [&](const char* name) { return state_.files.Exists(base::JoinPath(source, name)); };
    if (has(model::kAdapterConfigFile) && !has("config.json")) {
      return FieldError("base_model", "is not set, wanted the model that the adapter belongs to");
    }
    const kernels::DType dtype = request.dtype() == v1::MODEL_FORMAT_F32 ? kernels::DType::kF32 : kernels::DType::kBF16;
    OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
    const auto report = model::ImportModel(files, source, pending->directory(), dtype, options_.max_tokenizer_bytes);
    if (!report.ok()) return base::About(OfTheFiles(report.status()), request.name());
  }
  scope.Progress("write", 0, 1);
  NIBBLE_RETURN_IF_ERROR(pending->Commit(scope.stopped()).status());
  NIBBLE_ASSIGN_OR_RETURN(const v1::Model model, Describe(request.name(), false));
  google::protobuf::Any any;
  any.PackFrom(model);
  return any;
}

absl::Status ModelLibrary::ImportAdapter(const v1::ImportModelRequest& request, const std::string& source, const std::string& target,
                                         OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, state_.models->Get(request.base_model()));
  NIBBLE_ASSIGN_OR_RETURN(const auto base_model, model::Artifact::Open(stored.directory));
  auto adapter = model::ReadPeftAdapter(state_.files, source, base_model->config());
  if (!adapter.ok()) return base::About(OfTheFiles(adapter.status()), request.base_model());
  adapter->config.base_model_name_or_path = request.base_model();
  if (base_model->info().format != model::Format::kNf4) scope.Progress("quantize", 0, 1);
  const base::Json provenance = {{"imported_from", "peft"}, {"base_model", request.base_model()}};
  OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  const auto made = convert::MakeAdapterModel(files, *base_model, *std::move(adapter), provenance,
                                              base::JoinPath(state_.layout.uploads(), base::NewId("import")), target, convert_stream_,
                                              "import");
  return base::About(made.status(), request.base_model());
}

absl::StatusOr<v1::VerifyModelResponse> ModelLibrary::Verify(const std::string& name, const store::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, FindModel(*state_.models, metrics_, name));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, state_.models->PinModel(name, "verify"));
  auto replayed = Replay(stored);
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored.info));
  const bool promised = info.determinism() == model::Determinism::kBitwise;
  if (absl::IsDataLoss(replayed.status())) {
    metrics_.ArtifactVerifyFailed();
    return replayed;
  }
  if (!replayed.ok() && !promised) return replayed;  // it never had a record
  // What a reader cannot make sense of may be a file that was altered, and logits can be equal although a file is not (a weight
  // that no token of the record reaches): the manifest knows. Rows that differ are told as such, and the log says which it was.
  const absl::Status files = CheckModelFiles(*state_.models, metrics_, name, cancelled);
  const bool differs = replayed.ok() && replayed->differing_rows() > 0;
  if (absl::IsCancelled(files) || (!files.ok() && !differs)) return files;
  if (differs && files.ok()) {
    metrics_.ArtifactVerifyFailed();
    base::LogError("a model whose files are whole gives other logits than those recorded", {{"model", name}});
  }
  return replayed;
}

absl::StatusOr<v1::VerifyModelResponse> ModelLibrary::Replay(const store::StoredModel& stored) {
  NIBBLE_ASSIGN_OR_RETURN(const model::Record record, model::ReadRecord(state_.files, stored.directory));
  // Read again from the disk: what is verified is what a restart would serve.
  NIBBLE_ASSIGN_OR_RETURN(const auto loaded, model::LoadedModel::Load(stored.directory, {}, serve_stream_));
  NIBBLE_ASSIGN_OR_RETURN(const model::ReplayResult replay, model::ReplayRecord(*loaded, record, serve_stream_));
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
    NIBBLE_ASSIGN_OR_RETURN(const model::Record again, model::MakeRecord(*loaded, {sequence.token_ids}, serve_stream_));
    difference->set_computed_digest(again.sequences.front().row_digests[position]);
    return response;
  }
  // Files that fit their manifest may still be of two models: the tensors have digests of their own, and so has the record.
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(stored.directory));
  NIBBLE_RETURN_IF_ERROR(artifact->VerifyBytes());
  if (record.weights_digest != loaded->info().weights_digest) {
    return base::WithReason(absl::DataLossError("record.bin was made of other weights"), "ARTIFACT_CORRUPT");
  }
  return response;
}

}  // namespace nibble::rpc
