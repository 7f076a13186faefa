#include "server/registry/model_converter.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/convert.h"
#include "server/data/evaluate.h"
#include "server/data/example.h"
#include "server/data/held_out.h"
#include "server/model/loaded_model.h"
#include "server/model/record_tokens.h"
#include "server/model/replay.h"
#include "server/registry/conversion_report.h"
#include "server/registry/dataset_meta.h"
#include "server/registry/model_facts.h"
#include "server/registry/model_files.h"
#include "server/registry/model_memory.h"
#include "server/registry/operation_mark.h"

namespace nibble::registry {

using base::FieldError;
using base::StrCat;

namespace {

constexpr std::int64_t kEvalSeqLen = 512;  // tokens; for models that no job made

convert::ConvertOptions OptionsOf(const ConvertRequest& request) {
  convert::ConvertOptions options;
  options.to = *request.target;
  if (request.act_outliers.has_value()) options.act_outliers = *request.act_outliers;
  if (request.activations.has_value()) options.weight_only = request.activations == model::Format::kBF16;
  options.nf4.block = request.nf4_block.value_or(options.nf4.block);
  options.nf4.double_quant = request.double_quant.value_or(options.nf4.double_quant);
  options.nf4.scaler_block = request.scaler_block.value_or(options.nf4.scaler_block);
  if (request.head.has_value()) options.int8_head = request.head != model::Format::kBF16;
  if (request.adapter_init.has_value()) options.adapter_init = request.adapter_init->init;
  return options;
}

// Returns free memory to the system at the end of the function that declares it as its first variable.
struct MemoryReturn {
  ~MemoryReturn() { base::ReturnFreeMemory(); }
};

// Evaluation data of the job that made the model; empty for other models.
base::Json EvalDataOf(const model::ArtifactInfo& info) {
  return info.provenance.value("eval_data", base::Json::object());
}

// Tokens of the longest example of an evaluation; at least 2, because the first token of an example has no loss.
absl::StatusOr<std::int64_t> EvalSeqLen(const model::ArtifactInfo& info, const model::ModelConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t seq_len,
                          base::GetInt(EvalDataOf(info), "max_seq_len", "nibble.json", kEvalSeqLen));
  return std::clamp<std::int64_t>(seq_len, 2, config.context_limit());
}

}  // namespace

absl::Status ModelConverter::Check(const ConvertRequest& request, const std::string& tenant) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", request.name));
  NIBBLE_RETURN_IF_ERROR(CheckTarget(request));
  NIBBLE_RETURN_IF_ERROR(CheckQuality(request));
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          FindModel(*work_.state.models, work_.metrics, request.model));
  NIBBLE_RETURN_IF_ERROR(work_.state.models->CheckFree(request.name, tenant));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  NIBBLE_RETURN_IF_ERROR(convert::CheckConversion(info, OptionsOf(request)));
  if (request.adapter_init.has_value()) {
    NIBBLE_RETURN_IF_ERROR(work_.state.models->CheckFree(request.adapter_init->name, tenant));
    NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(source.directory));
    NIBBLE_RETURN_IF_ERROR(convert::CheckAdapterInit(request.adapter_init->init, artifact->config()));
  }
  if (request.merge && info.format != model::Format::kLora) {
    return FieldError("lora", StrCat("MERGE is for lora models, \"", request.model, "\" is ", Name(info.format)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string dataset, EvalDatasetOf(request, source));
  const bool bounded = request.tolerance.is_set();
  if (bounded && dataset.empty()) return FieldError("eval_dataset", "is not set, but the tolerance needs one");
  if (bounded && info.is_masters()) {
    return FieldError(
        "tolerance", "cannot be checked: the source holds master weights of a BitNet model, which cannot be evaluated");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ModelConverter::EvalDatasetOf(const ConvertRequest& request,
                                                          const store::StoredModel& source) const {
  if (request.eval_dataset.has_value()) {
    NIBBLE_RETURN_IF_ERROR(work_.state.datasets->Get(*request.eval_dataset).status());
    return *request.eval_dataset;
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(source.info));
  const std::string job = ProvenanceText(info.provenance, "job_id");
  if (job.empty() || !work_.options.eval_dataset_of_job) return std::string();
  const std::string dataset = work_.options.eval_dataset_of_job(job);
  // The user may have deleted the dataset since.
  return work_.state.datasets->Get(dataset).ok() ? dataset : std::string();
}

absl::Status ModelConverter::AddLosses(const ConvertRequest& request, const std::string& dataset,
                                       const std::string& source, const std::string& target, OperationScope& scope,
                                       ConversionReport& report) {
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, work_.state.datasets->Get(dataset));
  NIBBLE_ASSIGN_OR_RETURN(const auto text, texts_.Get(request.model));
  NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, FormatOf(stored));
  // Evaluate a job's model on the tokens that the job evaluated, with the same split and mask.
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored_source, work_.state.models->Get(request.model));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored_source.info));
  const base::Json eval_data = EvalDataOf(info);
  data::TokenizeOptions tokenize;
  NIBBLE_ASSIGN_OR_RETURN(tokenize.max_seq_len, EvalSeqLen(info, text->config));
  NIBBLE_ASSIGN_OR_RETURN(tokenize.train_on_prompt, base::GetBool(eval_data, "train_on_prompt", "nibble.json", false));
  if (eval_data.contains("add_special_tokens")) {
    NIBBLE_ASSIGN_OR_RETURN(tokenize.add_special_tokens, base::GetBool(eval_data, "add_special_tokens", "nibble.json"));
  }
  const data::RowFormat trained_format =
      data::ParseRowFormat(ProvenanceText(eval_data, "trained_format")).value_or(format);
  tokenize.overlong = data::OverlongFor(ProvenanceText(eval_data, "overlong"), trained_format, format);
  if (tokenize.overlong == data::Overlong::kError) tokenize.overlong.reset();  // the job has checked the rows
  // Uses the token file of the job's plan if it exists, and reads only the evaluated tokens from it.
  const data::TokenSource tokens = {.data_path = stored.data_path,
                                    .data_sha256 = stored.sha256,
                                    .tokens_directory = work_.state.paths.tokens(dataset),
                                    .format = format,
                                    .text = text->assets,
                                    .config = text->config,
                                    .options = tokenize};
  const auto found = tokens_.Get(tokens, [&scope] { return scope.cancelled(); });
  work_.state.datasets->RemoveTokensIfDeleted(dataset);
  NIBBLE_ASSIGN_OR_RETURN(data::Dataset loaded, found);
  if (!request.eval_dataset.has_value() && eval_data.contains("held_out")) {
    NIBBLE_ASSIGN_OR_RETURN(const double fraction, base::GetNumber(eval_data, "held_out", "nibble.json"));
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
                                 work_.convert_stream));
    const std::int64_t total =
        static_cast<std::int64_t>(directories.size()) * std::min(work_.options.max_eval_tokens, loaded.num_trained);
    const auto before =
        static_cast<std::int64_t>(results.size()) * total / static_cast<std::int64_t>(directories.size());
    NIBBLE_ASSIGN_OR_RETURN(data::Evaluation result,
                            data::Evaluate(model->config(), model->weights(), loaded.examples,
                                           {.max_tokens = work_.options.max_eval_tokens, .top_tokens = true},
                                           work_.convert_stream, [&](std::int64_t done) {
                                             scope.Progress("evaluate", before + done, total);
                                             return !scope.cancelled();
                                           }));
    results.push_back(std::move(result));
  }
  report.eval_loss_after = results.back().loss;
  report.eval_tokens = results.back().tokens;
  if (results.size() < 2) return absl::OkStatus();
  report.eval_loss_before = results[0].loss;
  std::int64_t same = 0;
  for (std::size_t i = 0; i < results[0].top_tokens.size(); ++i)
    same += results[0].top_tokens[i] == results[1].top_tokens[i];
  report.top1_agreement = static_cast<double>(same) / static_cast<double>(results[0].tokens);
  return absl::OkStatus();
}

// Adds the record that VerifyModel replays: the trainer's record if it was made for exactly these weights, otherwise a
// new one.
absl::Status ModelConverter::AddRecord(const std::string& source, const std::string& target, model::ArtifactInfo info,
                                       const base::Cancelled& cancelled) {
  // A job's model in the served format has the trainer's record as its own record.
  const std::string own = base::JoinPath(source, model::kRecordFile);
  const std::string forecast = base::JoinPath(source, model::PredictedRecordFile(info.format));
  const std::string& predicted = work_.state.files.Exists(own) ? own : forecast;
  if (work_.state.files.Exists(predicted)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, work_.state.files.Read(predicted, model::kMaxRecordBytes));
    NIBBLE_ASSIGN_OR_RETURN(const model::Record record, model::ParseRecord(bytes));
    if (record.weights_digest == info.weights_digest) {
      NIBBLE_RETURN_IF_ERROR(model::WriteRecord(work_.state.files, target, record));
      info.recorded_by = "trainer";
      return model::WriteArtifactInfo(work_.state.files, target, info);
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto loaded,
                          model::LoadedModel::Load(target, {.cancelled = cancelled}, work_.convert_stream));
  NIBBLE_ASSIGN_OR_RETURN(const model::TextAssets assets, model::LoadTextAssets(target));
  NIBBLE_ASSIGN_OR_RETURN(
      const model::Record record,
      model::MakeRecord(*loaded,
                        model::RecordTokens(*assets.tokenizer, loaded->config().vocab_size, loaded->max_positions()),
                        work_.convert_stream, cancelled));
  NIBBLE_RETURN_IF_ERROR(model::WriteRecord(work_.state.files, target, record));
  info.recorded_by = "convert";
  return model::WriteArtifactInfo(work_.state.files, target, info);
}

absl::Status ModelConverter::MakeAdapter(const ConvertRequest& request, const convert::ConvertReport& made,
                                         const std::string& base_directory, const std::string& target,
                                         OperationFiles& files, OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const auto base, model::Artifact::Open(base_directory));
  model::AdapterConfig adapter = request.adapter_init->init.adapter;
  adapter.base_model_name_or_path = request.name;
  const base::Json provenance = {{"base_model", request.name},
                                 {convert::kAdapterInit, base->info().provenance.at(convert::kAdapterInit)}};
  return convert::MakeLoraModel(files, *base, adapter, made.adapter, provenance, target, "convert", scope.stopped())
      .status();
}

// The adapter first: a crash before the base leaves an adapter that the next start removes, because its operation made
// no base (ModelLibrary::WasMadeBy).
absl::Status ModelConverter::Publish(const ConvertRequest& request, store::ModelStore::Pending& base,
                                     store::ModelStore::Pending* adapter, const base::WrittenDigests& digests,
                                     OperationScope& scope) {
  NIBBLE_RETURN_IF_ERROR(MarkMadeBy(work_.state.files, base.directory(), scope.identity()));
  if (adapter != nullptr) {
    NIBBLE_RETURN_IF_ERROR(MarkMadeBy(work_.state.files, adapter->directory(), scope.identity()));
    NIBBLE_RETURN_IF_ERROR(adapter->Commit(scope.stopped(), digests).status());
  }
  absl::Status published = base.Commit(scope.stopped(), digests).status();
  if (published.ok() || adapter == nullptr) return published;
  if (const absl::Status removed = work_.state.models->Delete(request.adapter_init->name); !removed.ok()) {
    base::LogWarning("cannot remove an adapter whose base was not published",
                     {{"model", request.adapter_init->name}, {"error", std::string(removed.message())}});
  }
  return published;
}

absl::StatusOr<ConvertOutcome> ModelConverter::Convert(const ConvertRequest& request, OperationScope& scope) {
  const MemoryReturn at_the_end;
  const absl::Duration began = clock_.Monotonic();
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel source,
                          FindModel(*work_.state.models, work_.metrics, request.model));
  NIBBLE_ASSIGN_OR_RETURN(const auto pin, work_.state.models->PinModel(request.model, "a conversion"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string dataset, EvalDatasetOf(request, source));
  NIBBLE_ASSIGN_OR_RETURN(const auto pending, work_.state.models->Begin(request.name));
  std::unique_ptr<store::ModelStore::Pending> adapter;
  if (request.adapter_init.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(adapter, work_.state.models->Begin(request.adapter_init->name));
  }
  scope.Progress("read", 0, 1);
  NIBBLE_RETURN_IF_ERROR(CheckModelFiles(*work_.state.models, work_.metrics, request.model, scope.stopped()));
  NIBBLE_ASSIGN_OR_RETURN(const auto artifact, model::Artifact::Open(source.directory));
  std::optional<EvaluationData> evaluation;
  if (!dataset.empty()) {
    NIBBLE_RETURN_IF_ERROR(work_.state.datasets->Get(dataset).status());
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t seq_len, EvalSeqLen(artifact->info(), artifact->config()));
    evaluation = EvaluationData{.max_tokens = work_.options.max_eval_tokens, .max_seq_len = seq_len};
  }
  NIBBLE_ASSIGN_OR_RETURN(const WorkMemory need, ConvertMemory(*artifact, OptionsOf(request), evaluation));
  NIBBLE_ASSIGN_OR_RETURN(auto turn, work_.AwaitTurn(StrCat("conversion of model ", request.model), need, scope));
  scope.Progress("quantize", 0, 1);
  OperationFiles files(work_.state.files, scope, work_.options.upload_limits.min_free_bytes);
  NIBBLE_ASSIGN_OR_RETURN(convert::ConvertReport made, convert::ConvertModel(files, *artifact, pending->directory(),
                                                                             OptionsOf(request), work_.convert_stream));
  ConvertOutcome outcome;
  ConversionReport& report = outcome.report;
  report.source_format = artifact->info().format;
  report.target_format = made.info.format;
  report.source_digest = artifact->info().weights_digest;
  report.target_digest = made.info.weights_digest;
  report.layers = std::move(made.layers);
  if (scope.cancelled()) return absl::CancelledError("cancelled");
  if (adapter != nullptr) {
    report.adapter = request.adapter_init->name;
    NIBBLE_RETURN_IF_ERROR(MakeAdapter(request, made, pending->directory(), adapter->directory(), files, scope));
  }
  if (!dataset.empty()) {
    const std::string& result = (adapter != nullptr ? adapter : pending)->directory();
    NIBBLE_RETURN_IF_ERROR(AddLosses(request, dataset, source.directory, result, scope, report));
    outcome.tolerance = CheckTolerance(request.tolerance, report);
    if (!outcome.tolerance.ok()) return outcome;
  }
  if (made.info.determinism() == model::Determinism::kBitwise) {
    scope.Progress("record", 0, 1);
    NIBBLE_RETURN_IF_ERROR(AddRecord(source.directory, pending->directory(), made.info, scope.stopped()));
  }
  turn.reset();  // the remaining work holds no model in memory
  NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(
      work_.state.files, base::JoinPath(pending->directory(), kConversionFile), ToJson(report)));
  scope.Progress("write", 0, 1);
  NIBBLE_RETURN_IF_ERROR(Publish(request, *pending, adapter.get(), files.digests(), scope));
  work_.metrics.Converted(model::Name(made.info.format), absl::ToDoubleSeconds(clock_.Monotonic() - began));
  return outcome;
}

}  // namespace nibble::registry
