#include "server/registry/model_importer.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/data/train_tokenizer.h"
#include "server/model/file_names.h"
#include "server/model/peft_adapter.h"
#include "server/registry/dataset_meta.h"
#include "server/registry/import_root.h"
#include "server/registry/model_files.h"
#include "server/registry/model_memory.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_mark.h"
#include "server/registry/uploaded_model.h"

namespace nibble::registry {

using base::FieldError;
using base::StrCat;

namespace {

constexpr std::size_t kMaxSourceName = 4096;  // bytes; the longest path of Linux

// Turns errors in imported files into InvalidArgument (MODEL_FORMAT): they are the caller's fault, whatever status
// code the reader returned.
absl::Status OfTheFiles(const absl::Status& status) {
  // Other ResourceExhausted errors, such as a full disk or too many open files, are not the caller's fault.
  const bool too_large = absl::IsResourceExhausted(status) && base::Reason(status) == "MALFORMED_FILE";
  const bool file = absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
                    absl::IsUnimplemented(status) || too_large;
  if (!file) return status;
  return base::WithReason(absl::InvalidArgumentError(status.message()), "MODEL_FORMAT",
                          {{"kind", base::Reason(status)}});
}

// Checks a request for random weights. Its dataset, if any, must exist.
absl::Status CheckRandomModel(const ImportRequest& request, const store::DatasetStore& datasets) {
  if (request.base_model.has_value()) return FieldError("random_init", "must not be set for adapters");
  if (request.source_name.has_value()) {
    return FieldError("source_name", "must not be set with random_init: no other program has these weights");
  }
  NIBBLE_RETURN_IF_ERROR(CheckRandomInit(*request.random_init));
  const std::optional<std::string>& dataset = request.random_init->tokenizer_dataset;
  return dataset.has_value() ? datasets.Get(*dataset).status() : absl::OkStatus();
}

}  // namespace

absl::Status ModelImporter::Check(const ImportRequest& request, const auth::RequestOwner& owner) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name));
  if (request.dtype.has_value() && request.dtype != model::Format::kF32 && request.dtype != model::Format::kBF16) {
    return FieldError("dtype", "wanted F32 or BF16");
  }
  if (request.base_model.has_value()) {
    if (request.dtype.has_value()) {
      return FieldError("dtype", "must not be set for adapters, which are stored in f32");
    }
    if (request.source_name.has_value()) return FieldError("source_name", "must not be set for adapters");
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model,
                            FindModel(*work_.state.models, work_.metrics, *request.base_model));
    NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(base_model.info));
    NIBBLE_RETURN_IF_ERROR(base::About(convert::CheckAdapterBase(info), *request.base_model));
  }
  if (request.random_init.has_value()) NIBBLE_RETURN_IF_ERROR(CheckRandomModel(request, *work_.state.datasets));
  if (request.source_name.has_value() && request.source_name->size() > kMaxSourceName) {
    return FieldError("source_name",
                      StrCat("has ", request.source_name->size(), " bytes, wanted at most ", kMaxSourceName));
  }
  NIBBLE_RETURN_IF_ERROR(work_.state.models->CheckFree(request.name, owner.tenant));
  if (!request.upload_id.has_value() && !request.server_path.has_value()) {
    return FieldError("source", "is not set, wanted upload_id or server_path");
  }
  if (request.server_path.has_value())
    return BeneathPath::Open(work_.options.import_root, *request.server_path).status();
  return uploads_.CheckFinished(owner, *request.upload_id);
}

absl::Status ModelImporter::Import(const ImportRequest& request, const auth::RequestOwner& owner,
                                   OperationScope& scope) {
  UploadTable::Taken upload;
  std::unique_ptr<BeneathPath> beneath;
  std::string source;
  // Before taking the upload: if the name is taken, the disk full or the base damaged, the upload remains for a retry.
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, work_.state.models->Begin(request.name));
  scope.Progress("read", 0, 1);
  std::shared_ptr<const store::Pin> pin;
  if (request.base_model.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(pin, work_.state.models->PinModel(*request.base_model, "an import of an adapter"));
    NIBBLE_RETURN_IF_ERROR(CheckModelFiles(*work_.state.models, work_.metrics, *request.base_model, scope.stopped()));
  }
  if (request.server_path.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(beneath, BeneathPath::Open(work_.options.import_root, *request.server_path));
    source = beneath->path();
  } else {
    NIBBLE_ASSIGN_OR_RETURN(upload, uploads_.TakeFinished(owner, *request.upload_id));
    source = static_cast<const UploadedModel&>(*upload.content).directory();
  }
  OperationFiles files(work_.state.files, scope, work_.options.upload_limits.min_free_bytes);
  const absl::Status imported = request.base_model.has_value()
                                    ? ImportAdapter(request, source, pending->directory(), files, scope)
                                    : ImportWeights(request, source, pending->directory(), files, scope);
  // Memory may become free later: keep the upload for a retry.
  if (upload.entry != nullptr && base::Reason(imported) == "OUT_OF_DEVICE_MEMORY") uploads_.PutBack(upload);
  NIBBLE_RETURN_IF_ERROR(imported);
  scope.Progress("write", 0, 1);
  NIBBLE_RETURN_IF_ERROR(MarkMadeBy(work_.state.files, pending->directory(), scope.identity()));
  return pending->Commit(scope.stopped(), files.digests()).status();
}

absl::Status ModelImporter::ImportWeights(const ImportRequest& request, const std::string& source,
                                          const std::string& target, OperationFiles& files, OperationScope& scope) {
  const auto has = [&](const char* name) { return work_.state.files.Exists(base::JoinPath(source, name)); };
  if (has(model::kAdapterConfigFile) && !has(model::kConfigFile)) {
    return FieldError("base_model", "is not set, wanted the base model of the adapter");
  }
  const kernels::DType dtype = request.dtype == model::Format::kF32 ? kernels::DType::kF32 : kernels::DType::kBF16;
  // Wait for a turn, as conversions do: otherwise an import would be refused memory that a running verification or
  // publication will return. Conversions and imports never run together anyway (OperationLane::kModels).
  WorkAdmission::Turn turn;
  const auto admit = [&](std::int64_t bytes) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(turn, work_.AwaitTurn(StrCat("import of model ", request.name), {.buffers = bytes}, scope));
    scope.Progress("read", 0, 1);  // AwaitTurn may have set "wait"
    return absl::OkStatus();
  };
  model::ImportOptions options{.max_tokenizer_bytes = work_.options.max_tokenizer_bytes, .admit = admit};
  if (!request.source_name.value_or("").empty()) options.provenance[model::kSourceName] = *request.source_name;
  if (const auto& random = request.random_init; random.has_value()) {
    options.random = RandomInitOf(request, scope);
    options.provenance["seed"] = random->seed;
    if (random->tokenizer_dataset.has_value()) options.provenance["tokenizer_dataset"] = *random->tokenizer_dataset;
  }
  const auto report = model::ImportModel(files, source, target, dtype, options);
  return base::About(OfTheFiles(report.status()), request.name);
}

model::RandomInit ModelImporter::RandomInitOf(const ImportRequest& request, OperationScope& scope) const {
  model::RandomInit init{.seed = static_cast<std::uint64_t>(request.random_init->seed), .stream = work_.convert_stream};
  if (request.random_init->tokenizer_dataset.has_value()) {
    init.train_tokenizer = [this, &request, &scope](const model::ModelConfig& config) {
      return TrainTokenizer(request, config, scope);
    };
  }
  return init;
}

absl::StatusOr<model::TrainedTokenizer> ModelImporter::TrainTokenizer(const ImportRequest& request,
                                                                      const model::ModelConfig& config,
                                                                      OperationScope& scope) const {
  const std::string& dataset = *request.random_init->tokenizer_dataset;
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, work_.state.datasets->PinDataset(dataset, "the training of a tokenizer"));
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, work_.state.datasets->Get(dataset));
  NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, FormatOf(stored));
  std::vector<std::string> special = request.random_init->special_tokens;
  if (special.empty()) special.push_back(kEndOfText);
  const std::int64_t bytes = data::TrainTokenizerBytes(stored.bytes, config.vocab_size);
  NIBBLE_ASSIGN_OR_RETURN(const WorkAdmission::Turn turn,
                          work_.AwaitTurn(StrCat("tokenizer of model ", request.name), {.buffers = bytes}, scope));
  const auto progress = [&](std::int64_t done) {
    scope.Progress("tokenizer", done, static_cast<std::int64_t>(stored.bytes));
  };
  progress(0);
  model::TrainedTokenizer trained;
  trained.eos_token = special.front();  // its id is 0
  NIBBLE_ASSIGN_OR_RETURN(trained.json, data::TrainTokenizer(stored.data_path, format, special, config.vocab_size,
                                                             scope.stopped(), progress));
  return trained;
}

absl::Status ModelImporter::ImportAdapter(const ImportRequest& request, const std::string& source,
                                          const std::string& target, OperationFiles& files, OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, work_.state.models->Get(*request.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const auto base_model, model::Artifact::Open(stored.directory));
  WorkAdmission::Turn turn;
  const auto admit = [&](const model::AdapterConfig& config, std::int64_t bytes) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(turn, work_.AwaitTurn(StrCat("import of an adapter on model ", *request.base_model),
                                                  AdapterMemory(*base_model, bytes, config.base_nf4), scope));
    return absl::OkStatus();
  };
  auto adapter = model::ReadPeftAdapter(work_.state.files, source, base_model->config(), admit);
  if (!adapter.ok()) return base::About(OfTheFiles(adapter.status()), *request.base_model);
  std::string& base_name = adapter->config.base_model_name_or_path;
  const std::string source_name = model::SourceName(base_model->info());
  if (!source_name.empty()) base_name = source_name;
  if (base_name.empty()) base_name = *request.base_model;
  if (!convert::RunsOnBaseItself(base_model->info(), adapter->config)) scope.Progress("quantize", 0, 1);
  const base::Json provenance = {{"imported_from", "peft"}, {"base_model", *request.base_model}};
  const auto made = convert::MakeAdapterModel(files, *base_model, *std::move(adapter), provenance,
                                              base::JoinPath(work_.state.paths.uploads(), base::NewId("import")),
                                              target, work_.convert_stream, "import");
  return base::About(made.status(), *request.base_model);
}

}  // namespace nibble::registry
