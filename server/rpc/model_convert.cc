// ModelLibrary: conversions and exports.
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/convert/export.h"
#include "server/data/evaluate.h"
#include "server/data/example.h"
#include "server/data/held_out.h"
#include "server/model/replay.h"
#include "server/plan/job_planner.h"
#include "server/plan/record_tokens.h"
#include "server/registry/model_files.h"
#include "server/registry/model_memory.h"
#include "server/registry/operation_files.h"
#include "server/registry/operation_mark.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/model_library.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/status.h"
#include "server/store/published_directory.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

namespace {

constexpr std::int64_t kEvalSeqLen = 512;

std::string Text(const base::Json& object, const char* key) {
  return base::GetString(object, key, "", "").value_or("");
}

// UNSPECIFIED means unset.
bool HasHead(const v1::ConvertModelRequest& request) { return request.head() != v1::MODEL_FORMAT_UNSPECIFIED; }

absl::Status CheckBounds(const v1::ConversionTolerance& tolerance) {
  if (tolerance.has_max_eval_loss_delta() && !std::isfinite(tolerance.max_eval_loss_delta())) {
    return FieldError("tolerance.max_eval_loss_delta",
                      StrCat("is ", tolerance.max_eval_loss_delta(), ", wanted a finite number"));
  }
  // The comparison also refuses NaN.
  if (tolerance.has_min_top1_agreement() &&
      !(tolerance.min_top1_agreement() >= 0 && tolerance.min_top1_agreement() <= 1)) {
    return FieldError("tolerance.min_top1_agreement", StrCat("is ", tolerance.min_top1_agreement(), ", wanted 0 to 1"));
  }
  return absl::OkStatus();
}

convert::ConvertOptions OptionsOf(const v1::ConvertModelRequest& request) {
  convert::ConvertOptions options;
  options.to = request.target() == v1::MODEL_FORMAT_NF4       ? model::Format::kNf4
               : request.target() == v1::MODEL_FORMAT_TERNARY ? model::Format::kTernary
               : request.target() == v1::MODEL_FORMAT_BF16    ? model::Format::kBF16
                                                              : model::Format::kInt8;
  if (request.has_act_outliers()) options.act_outliers = request.act_outliers();
  if (HasHead(request)) options.int8_head = request.head() != v1::MODEL_FORMAT_BF16;
  return options;
}

absl::Status WriteExport(base::FileSystem& files, const v1::ExportModelRequest& request,
                         const model::Artifact& artifact, const std::string& target) {
  const std::uint64_t max_shard_bytes = request.has_max_shard_bytes()
                                            ? static_cast<std::uint64_t>(request.max_shard_bytes())
                                            : convert::kDefaultShardBytes;
  switch (request.format()) {
    case v1::EXPORT_FORMAT_PEFT: return convert::ExportPeft(files, artifact, target);
    case v1::EXPORT_FORMAT_COMPRESSED_TENSORS:
      return convert::ExportCompressedTensors(files, artifact, target, max_shard_bytes);
    default:
      return convert::ExportHf(files, artifact, target,
                               request.linear_class() == v1::HF_LINEAR_CLASS_AUTOBITLINEAR
                                   ? convert::HfBitNetClass::kAutoBitLinear
                                   : convert::HfBitNetClass::kBitLinear,
                               max_shard_bytes);
  }
}

absl::Status CheckTolerance(const v1::ConversionTolerance& tolerance, const v1::ConversionReport& report) {
  std::string why;
  if (tolerance.has_max_eval_loss_delta()) {
    const double delta = report.eval_loss_after() - report.eval_loss_before();
    if (!(delta <= tolerance.max_eval_loss_delta())) {
      why = StrCat("the evaluation loss rose by ", delta, ", allowed ", tolerance.max_eval_loss_delta());
    }
  }
  if (why.empty() && tolerance.has_min_top1_agreement() &&
      !(report.top1_agreement() >= tolerance.min_top1_agreement())) {
    why = StrCat("the share of positions with the same top token is ", report.top1_agreement(), ", wanted at least ",
                 tolerance.min_top1_agreement());
  }
  if (why.empty()) return absl::OkStatus();
  absl::Status status = base::WithReason(absl::FailedPreconditionError(why), "CONVERSION_TOLERANCE");
  v1::ConversionReport brief = report;
  brief.clear_layers();
  status.SetPayload("type.googleapis.com/nibble.v1.ConversionReport", absl::Cord(brief.SerializeAsString()));
  return status;
}

// Returns free memory to the system at the end of the function that declares it as its first variable.
struct MemoryReturn {
  ~MemoryReturn() { base::ReturnFreeMemory(); }
};

// Evaluation data of the job that made the model; empty for other models.
base::Json EvalDataOf(const model::ArtifactInfo& info) {
  return info.provenance.value("eval_data", base::Json::object());
}

// Tokens of the longest example of an evaluation.
absl::StatusOr<std::int64_t> EvalSeqLen(const model::ArtifactInfo& info, const model::ModelConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t seq_len,
                          base::GetInt(EvalDataOf(info), "max_seq_len", "nibble.json", kEvalSeqLen));
  return std::clamp<std::int64_t>(seq_len, 2, config.context_limit());
}

}  // namespace

absl::Status ModelLibrary::CheckConvert(const v1::ConvertModelRequest& request, const std::string& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name()));
  if (request.has_checkpoint()) return Unimplemented("ConvertModelRequest.checkpoint");
  if (request.has_calibration_dataset()) return Unimplemented("ConvertModelRequest.calibration_dataset");
  if (!request.has_model()) return FieldError("source", "is not set, wanted model");
  const bool to_int8 = request.target() == v1::MODEL_FORMAT_INT8;
  if (!to_int8 && request.target() != v1::MODEL_FORMAT_NF4 && request.target() != v1::MODEL_FORMAT_TERNARY &&
      request.target() != v1::MODEL_FORMAT_BF16) {
    return FieldError("target", "wanted INT8, TERNARY, NF4 or BF16");
  }
  if (!to_int8 && (request.has_act_outliers() || HasHead(request))) {
    return FieldError(HasHead(request) ? "head" : "act_outliers", "applies only to INT8");
  }
  if (request.lora() == v1::LORA_HANDLING_KEEP || request.lora() == v1::LORA_HANDLING_MERGE_AWARE) {
    return Unimplemented(StrCat("ConvertModelRequest.lora ", v1::LoraHandling_Name(request.lora())));
  }
  if (!v1::LoraHandling_IsValid(request.lora())) {
    return FieldError("lora", StrCat("is ", static_cast<int>(request.lora()), ", wanted MERGE"));
  }
  NIBBLE_RETURN_IF_ERROR(CheckBounds(request.tolerance()));
  if (request.has_act_outliers() && (request.act_outliers() < 0 || request.act_outliers() > kernels::kMaxOutliers)) {
    return FieldError("act_outliers", StrCat("is ", request.act_outliers(), ", wanted 0 to ", kernels::kMaxOutliers));
  }
  if (HasHead(request) && request.head() != v1::MODEL_FORMAT_INT8 && request.head() != v1::MODEL_FORMAT_BF16) {
    return FieldError("head", "wanted INT8 or BF16");
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          registry::FindModel(*state_.models, metrics_, request.model()));
  NIBBLE_RETURN_IF_ERROR(state_.models->CheckFree(request.name(), tenant));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  NIBBLE_RETURN_IF_ERROR(convert::CheckConversion(info, OptionsOf(request).to));
  if (request.lora() == v1::LORA_HANDLING_MERGE && info.format != model::Format::kLora) {
    return FieldError("lora", StrCat("MERGE is for lora models, \"", request.model(), "\" is ", Name(info.format)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string dataset, EvalDatasetOf(request, source));
  const bool bounded = request.tolerance().has_max_eval_loss_delta() || request.tolerance().has_min_top1_agreement();
  if (bounded && dataset.empty()) return FieldError("eval_dataset", "is not set, but the tolerance needs one");
  if (bounded && info.is_masters()) {
    return FieldError("tolerance",
                      "cannot be checked: the source holds master weights of a BitNet model, which have no loss");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelLibrary::EvalDatasetOf(const v1::ConvertModelRequest& request,
                                                        const store::StoredModel& source) const {
  if (request.has_eval_dataset()) {
    NIBBLE_RETURN_IF_ERROR(state_.datasets->Get(request.eval_dataset()).status());
    return request.eval_dataset();
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  const std::string job = Text(info.provenance, "job_id");
  if (job.empty() || !options_.eval_dataset_of_job) return std::string();
  const std::string dataset = options_.eval_dataset_of_job(job);
  // The user may have deleted the dataset since.
  return state_.datasets->Get(dataset).ok() ? dataset : std::string();
}

absl::Status ModelLibrary::AddLosses(const v1::ConvertModelRequest& request, const std::string& dataset,
                                     const std::string& source, const std::string& target,
                                     registry::OperationScope& scope, v1::ConversionReport& report) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(dataset));
  NIBBLE_ASSIGN_OR_RETURN(const auto text, texts_.Get(request.model()));
  NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, plan::FormatOf(stored));
  // Evaluate a job's model on the tokens that the job evaluated, with the same split and mask.
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored_source, state_.models->Get(request.model()));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored_source.info));
  const base::Json cut = EvalDataOf(info);
  data::TokenizeOptions tokenize;
  NIBBLE_ASSIGN_OR_RETURN(tokenize.max_seq_len, EvalSeqLen(info, text->config));
  NIBBLE_ASSIGN_OR_RETURN(tokenize.train_on_prompt, base::GetBool(cut, "train_on_prompt", "nibble.json", false));
  if (cut.contains("add_special_tokens")) {
    NIBBLE_ASSIGN_OR_RETURN(tokenize.add_special_tokens, base::GetBool(cut, "add_special_tokens", "nibble.json"));
  }
  const data::RowFormat trained_format = data::ParseRowFormat(Text(cut, "trained_format")).value_or(format);
  tokenize.overlong = data::OverlongFor(Text(cut, "overlong"), trained_format, format);
  if (tokenize.overlong == data::Overlong::kError) tokenize.overlong.reset();  // the job has checked the rows
  // Uses the token file of the job's plan if it exists, and reads only the evaluated tokens from it.
  const data::TokenSource tokens = {.data_path = stored.data_path,
                                    .data_sha256 = stored.sha256,
                                    .tokens_directory = state_.paths.tokens(dataset),
                                    .format = format,
                                    .text = text->assets,
                                    .config = text->config,
                                    .options = tokenize};
  const auto found = options_.load_tokens(tokens, [&scope] { return scope.cancelled(); });
  state_.datasets->RemoveTokensIfDeleted(dataset);
  NIBBLE_ASSIGN_OR_RETURN(data::Dataset loaded, found);
  if (!request.has_eval_dataset() && cut.contains("held_out")) {
    NIBBLE_ASSIGN_OR_RETURN(const double fraction, base::GetNumber(cut, "held_out", "nibble.json"));
    NIBBLE_ASSIGN_OR_RETURN(data::HeldOut parts, data::HoldOut(loaded, fraction));
    loaded = std::move(parts.eval);
  }
  // Master weights cannot run as a model, so only the converted model is evaluated.
  std::vector<std::string> directories = {source, target};
  if (info.is_masters()) directories.erase(directories.begin());
  std::vector<data::Evaluation> results;
  for (const std::string& directory : directories) {
    NIBBLE_ASSIGN_OR_RETURN(
        const auto model,
        model::LoadedModel::Load(directory, {.max_positions = tokenize.max_seq_len, .cancelled = scope.stopped()},
                                 convert_stream_));
    const std::int64_t total =
        static_cast<std::int64_t>(directories.size()) * std::min(options_.max_eval_tokens, loaded.num_trained);
    const auto before =
        static_cast<std::int64_t>(results.size()) * total / static_cast<std::int64_t>(directories.size());
    NIBBLE_ASSIGN_OR_RETURN(data::Evaluation result,
                            data::Evaluate(model->config(), model->weights(), loaded.examples,
                                           {.max_tokens = options_.max_eval_tokens, .top_tokens = true},
                                           convert_stream_, [&](std::int64_t done) {
                                             scope.Progress("evaluate", before + done, total);
                                             return !scope.cancelled();
                                           }));
    results.push_back(std::move(result));
  }
  report.set_eval_loss_after(results.back().loss);
  report.set_eval_tokens(results.back().tokens);
  if (results.size() < 2) return absl::OkStatus();
  report.set_eval_loss_before(results[0].loss);
  std::int64_t same = 0;
  for (std::size_t i = 0; i < results[0].top_tokens.size(); ++i)
    same += results[0].top_tokens[i] == results[1].top_tokens[i];
  report.set_top1_agreement(static_cast<double>(same) / static_cast<double>(results[0].tokens));
  return absl::OkStatus();
}

// Adds the record that VerifyModel replays: the trainer's record if it was made for exactly these weights, otherwise a
// new one.
absl::Status ModelLibrary::AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                                     const base::Cancelled& cancelled) {
  const std::string foretold = base::JoinPath(source, model::ForetoldRecordFile(info.format));
  if (state_.files.Exists(foretold)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, state_.files.Read(foretold, 256u << 20));
    NIBBLE_ASSIGN_OR_RETURN(const model::Record record, model::ParseRecord(bytes));
    if (record.weights_digest == info.weights_digest) {
      NIBBLE_RETURN_IF_ERROR(model::WriteRecord(state_.files, target, record));
      info.recorded_by = "trainer";
      return model::WriteArtifactInfo(state_.files, target, info);
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto loaded,
                          model::LoadedModel::Load(target, {.cancelled = cancelled}, convert_stream_));
  NIBBLE_ASSIGN_OR_RETURN(const model::TextAssets assets, model::LoadTextAssets(target));
  NIBBLE_ASSIGN_OR_RETURN(
      const model::Record record,
      model::MakeRecord(*loaded,
                        plan::RecordTokens(*assets.tokenizer, loaded->config().vocab_size, loaded->max_positions()),
                        convert_stream_, cancelled));
  NIBBLE_RETURN_IF_ERROR(model::WriteRecord(state_.files, target, record));
  info.recorded_by = "convert";
  return model::WriteArtifactInfo(state_.files, target, info);
}

absl::StatusOr<operations::OperationResponse> ModelLibrary::Convert(const v1::ConvertModelRequest& request,
                                                                    registry::OperationScope& scope) {
  const MemoryReturn at_the_end;
  const absl::Duration began = clock_.Monotonic();
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          registry::FindModel(*state_.models, metrics_, request.model()));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, state_.models->PinModel(request.model(), "a conversion"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string dataset, EvalDatasetOf(request, source));
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, state_.models->Begin(request.name()));
  scope.Progress("read", 0, 1);
  NIBBLE_RETURN_IF_ERROR(registry::CheckModelFiles(*state_.models, metrics_, request.model(), scope.stopped()));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(source.directory));
  std::optional<registry::EvaluationData> evaluation;
  if (!dataset.empty()) {
    NIBBLE_RETURN_IF_ERROR(state_.datasets->Get(dataset).status());
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t seq_len, EvalSeqLen(artifact->info(), artifact->config()));
    evaluation = registry::EvaluationData{.max_tokens = options_.max_eval_tokens, .max_seq_len = seq_len};
  }
  NIBBLE_ASSIGN_OR_RETURN(const registry::WorkMemory need,
                          registry::ConvertMemory(*artifact, OptionsOf(request), evaluation));
  NIBBLE_ASSIGN_OR_RETURN(auto turn, AwaitTurn(StrCat("conversion of model ", request.model()), need, scope));
  scope.Progress("quantize", 0, 1);
  registry::OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  NIBBLE_ASSIGN_OR_RETURN(
      const convert::ConvertReport made,
      convert::ConvertModel(files, *artifact, pending->directory(), OptionsOf(request), convert_stream_));
  v1::ConversionReport report = ToProto(made);
  report.set_source_format(ToProto(artifact->info().format));
  report.set_source_digest(artifact->info().weights_digest);
  if (scope.cancelled()) return absl::CancelledError("cancelled");
  if (!dataset.empty()) {
    NIBBLE_RETURN_IF_ERROR(AddLosses(request, dataset, source.directory, pending->directory(), scope, report));
    NIBBLE_RETURN_IF_ERROR(CheckTolerance(request.tolerance(), report));
  }
  if (made.info.determinism() == model::Determinism::kBitwise) {
    scope.Progress("record", 0, 1);
    NIBBLE_RETURN_IF_ERROR(AddRecord(source.directory, pending->directory(), made.info, scope.stopped()));
  }
  turn.reset();  // the remaining work holds no model in memory
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(report, &json).ok())
    return absl::InternalError("the report cannot be written");
  NIBBLE_RETURN_IF_ERROR(
      base::WriteFileAtomically(state_.files, base::JoinPath(pending->directory(), kConversionFile), json));
  scope.Progress("write", 0, 1);
  NIBBLE_RETURN_IF_ERROR(registry::MarkMadeBy(state_.files, pending->directory(), scope.identity()));
  NIBBLE_RETURN_IF_ERROR(pending->Commit(scope.stopped()).status());
  metrics_.Converted(model::Name(made.info.format), absl::ToDoubleSeconds(clock_.Monotonic() - began));
  return ResponseOf(request.name());
}

absl::Status ModelLibrary::CheckExport(const v1::ExportModelRequest& request) {
  if (request.format() == v1::EXPORT_FORMAT_GGUF) {
    return Unimplemented(StrCat("ExportModelRequest.format ", v1::ExportFormat_Name(request.format())));
  }
  if (std::find(std::begin(kExportFormats), std::end(kExportFormats), request.format()) == std::end(kExportFormats)) {
    return FieldError("format", "wanted PEFT, HF, HF_BITNET or COMPRESSED_TENSORS");
  }
  if (request.has_max_shard_bytes() && request.format() == v1::EXPORT_FORMAT_PEFT) {
    return FieldError("max_shard_bytes", "is for HF, HF_BITNET and COMPRESSED_TENSORS");
  }
  if (request.has_max_shard_bytes() && request.max_shard_bytes() < 1) {
    return FieldError("max_shard_bytes", StrCat("is ", request.max_shard_bytes(), ", wanted 1 or more"));
  }
  if (!v1::HfLinearClass_IsValid(request.linear_class())) {
    return FieldError("linear_class",
                      StrCat("is ", static_cast<int>(request.linear_class()), ", wanted BITLINEAR or AUTOBITLINEAR"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          registry::FindModel(*state_.models, metrics_, request.model()));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  if (request.format() == v1::EXPORT_FORMAT_HF_BITNET && !info.bitnet.has_value()) {
    return FieldError("format",
                      StrCat("HF_BITNET is for BitNet models, \"", request.model(), "\" is ", Name(info.format)));
  }
  if (request.format() == v1::EXPORT_FORMAT_PEFT && info.format != model::Format::kLora) {
    return FieldError("format", StrCat("PEFT is for lora models, \"", request.model(), "\" is ", Name(info.format)));
  }
  if (request.format() == v1::EXPORT_FORMAT_HF && info.format != model::Format::kF32 &&
      info.format != model::Format::kBF16 && info.format != model::Format::kTernary) {
    const bool merges = info.format == model::Format::kLora || info.format == model::Format::kNf4;
    const std::string how =
        merges ? StrCat("; convert it first: nibble models convert ", request.model(), " --to bf16 --name NEW") : "";
    return FieldError("format", StrCat("HF is for f32, bf16 and ternary models, \"", request.model(), "\" is ",
                                       Name(info.format), how));
  }
  if (request.format() == v1::EXPORT_FORMAT_COMPRESSED_TENSORS)
    NIBBLE_RETURN_IF_ERROR(convert::CheckCompressedTensors(info));
  if (request.linear_class() != v1::HF_LINEAR_CLASS_UNSPECIFIED && info.format != model::Format::kTernary) {
    return FieldError("linear_class",
                      StrCat("is for ternary models, \"", request.model(), "\" is ", Name(info.format)));
  }
  return absl::OkStatus();
}

absl::StatusOr<operations::OperationResponse> ModelLibrary::Export(const v1::ExportModelRequest& request,
                                                                   registry::OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          registry::FindModel(*state_.models, metrics_, request.model()));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, state_.models->PinModel(request.model(), "an export"));
  scope.Progress("read", 0, 1);
  NIBBLE_RETURN_IF_ERROR(registry::CheckModelFiles(*state_.models, metrics_, request.model(), scope.stopped()));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(source.directory));
  v1::ExportModelResponse response;
  response.set_artifact_id(base::NewId("export"));
  auto exported = std::make_shared<ExportedFiles>();
  exported->directory = base::JoinPath(state_.paths.uploads(), response.artifact_id());
  scope.Progress("write", 0, 1);
  registry::OperationFiles files(state_.files, scope, options_.upload_limits.min_free_bytes);
  NIBBLE_RETURN_IF_ERROR(WriteExport(files, request, *artifact, exported->directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto names, state_.files.List(exported->directory));
  for (const std::string& name : names) {
    NIBBLE_ASSIGN_OR_RETURN(const store::ManifestEntry entry,
                            store::HashFile(base::JoinPath(exported->directory, name), scope.stopped()));
    v1::FileEntry file;
    file.set_path(name);
    file.set_size_bytes(static_cast<std::int64_t>(entry.size));
    file.set_sha256(entry.sha256);
    *response.add_files() = file;
    exported->files.push_back(std::move(file));
  }
  // From here on the operation owns the files: they are removed when it is forgotten.
  scope.Hold(exported, options_.kept);
  base::MutexLock lock(mutex_);
  std::erase_if(exports_, [](const auto& one) { return one.second.expired(); });
  exports_[response.artifact_id()] = exported;
  return Packed(response);
}

ModelLibrary::ExportedFiles::~ExportedFiles() {
  // A leftover is removed at the next start, which empties uploads/.
  base::RealFileSystem().RemoveAll(directory).IgnoreError();
}

absl::StatusOr<std::shared_ptr<const ModelLibrary::ExportedFiles>> ModelLibrary::Exported(
    const std::string& artifact_id) {
  {
    base::MutexLock lock(mutex_);
    const auto it = exports_.find(artifact_id);
    if (it != exports_.end()) {
      if (auto files = it->second.lock(); files != nullptr) return files;
    }
  }
  return base::WithReason(absl::NotFoundError("artifact_id: no such export; the files of an export are kept for an "
                                              "hour, and removed with its operation or when the server restarts"),
                          "ARTIFACT", {{"name", artifact_id.substr(0, 64)}});
}

}  // namespace nibble::rpc
