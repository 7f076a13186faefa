#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "client/files_to_send.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/human_bytes.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {
namespace {

using v1::ModelService;

constexpr std::string_view kGgufEnding = ".gguf";

void PrintModel(Session& session, const v1::Model& model) {
  if (session.json) return session.Print(ModelJson(model));
  Table table({"name", model.name()});
  table.Add({"format", Lower(model.format())});
  table.Add({"digest", model.digest()});
  table.Add({"size", base::HumanBytes(model.bytes())});
  table.Add({"parameters", base::StrCat(model.parameters())});
  if (!model.base_model().empty()) table.Add({"base", model.base_model()});
  table.Add({"from", base::StrCat(Lower(model.origin()), " ", model.source())});
  if (model.trained_format() != v1::DATASET_FORMAT_UNSPECIFIED) {
    table.Add({"trained on", base::StrCat(Lower(model.trained_format()), " rows")});
  }
  table.Add({"logits", model.determinism() == v1::DETERMINISM_EXACT ? "exact" : "best effort"});
  table.Add({"record", base::StrCat(model.record_rows(), " rows")});
  table.Add({"loaded", model.loaded() ? "yes" : "no"});
  if (!model.conversion().adapter().empty()) table.Add({"adapter", model.conversion().adapter()});
  if (model.has_conversion() && model.conversion().has_eval_loss_before() && model.conversion().has_eval_loss_after()) {
    table.Add({"eval loss", base::StrCat(HumanNumber(model.conversion().eval_loss_before(), 6), " before conversion, ",
                                         HumanNumber(model.conversion().eval_loss_after(), 6), " after")});
  }
  table.Print(session.out());
}

// Rejects an invalid or taken name before the upload.
absl::Status CheckFree(Session& session, const std::string& name) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  v1::GetModelRequest request;
  request.set_name(name);
  const absl::Status status = session.client().Call(&ModelService::Stub::GetModel, request).status();
  if (absl::IsNotFound(status)) return absl::OkStatus();
  if (!absl::IsDataLoss(status)) NIBBLE_RETURN_IF_ERROR(status);  // a damaged model keeps its name
  return base::WithReason(absl::AlreadyExistsError(base::StrCat("a model named \"", name, "\" already exists")),
                          "NAME_TAKEN");
}

struct ImportOptions {
  std::string path, name;
  std::optional<std::string> dtype, base, resume, source_name;
  bool random = false;
  std::optional<std::int64_t> seed;
  std::optional<std::string> tokenizer_dataset;
  std::vector<std::string> special_tokens;
};

// Where other programs find the files: the hub repository if the path is in huggingface_hub's cache, which has
// models--ORG--NAME/snapshots/REVISION, else the absolute path.
std::string SourceNameOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  constexpr std::string_view kRepository = "models--";
  for (auto part = absolute.begin(); part != absolute.end(); ++part) {
    const auto next = std::next(part);
    if (next == absolute.end() || *next != "snapshots" || !part->string().starts_with(kRepository)) continue;
    return absl::StrReplaceAll(part->string().substr(kRepository.size()), {{"--", "/"}});
  }
  return (absolute.has_filename() ? absolute : absolute.parent_path()).string();
}

// A GGUF file rarely names the model that its weights were converted from: general.base_model is an ancestor, with
// other weights. So only the user can name it.
void NoteUnknownSource(Session& session, const std::vector<client::FileToSend>& files, const ImportOptions& options) {
  const bool is_gguf = std::any_of(files.begin(), files.end(),
                                   [](const client::FileToSend& file) { return file.name.ends_with(kGgufEnding); });
  if (!is_gguf || options.source_name.has_value()) return;
  session.terminal.err
      << "note: PEFT does not load a base from a GGUF file. If you will export adapters on this model "
         "for PEFT, import it with --source-name REPOSITORY, the hub repository of the original model\n"
      << std::flush;
}

// Rejects an adapter with missing or excess options, and a missing base model, before the upload.
absl::Status CheckBase(Session& session, const std::vector<client::FileToSend>& files, const ImportOptions& options) {
  const auto has = [&](std::string_view name) {
    return std::any_of(files.begin(), files.end(), [&](const client::FileToSend& file) { return file.name == name; });
  };
  if (!options.base.has_value()) {
    if (!has("adapter_config.json") || has("config.json")) return absl::OkStatus();
    return base::FieldError(
        "base", base::StrCat("is not set; ", options.path, " contains an adapter: name its base model with --base"));
  }
  if (!has("adapter_config.json")) {
    return base::FieldError("base",
                            base::StrCat("is for adapters only; ", options.path, " contains no adapter_config.json"));
  }
  if (options.dtype.has_value()) {
    return base::FieldError("dtype", "must not be set for adapters, which are stored in f32");
  }
  if (options.source_name.has_value()) return base::FieldError("source-name", "must not be set for adapters");
  NIBBLE_RETURN_IF_ERROR(CheckText("base", *options.base));
  v1::GetModelRequest request;
  request.set_name(*options.base);
  return session.client().Call(&ModelService::Stub::GetModel, request).status();
}

// The options of a model with random weights, checked before the upload; nothing without --random.
absl::StatusOr<std::optional<v1::RandomInit>> RandomInitOf(Session& session, const ImportOptions& options) {
  if (!options.random) {
    for (const auto& [option, is_set] : {std::pair{"seed", options.seed.has_value()},
                                         {"tokenizer-dataset", options.tokenizer_dataset.has_value()},
                                         {"special-token", !options.special_tokens.empty()}}) {
      if (is_set) return base::FieldError(option, "is only for models with random weights: add --random");
    }
    return std::nullopt;
  }
  v1::RandomInit init;
  if (options.seed.has_value()) init.set_seed(*options.seed);
  if (options.tokenizer_dataset.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckText("tokenizer-dataset", *options.tokenizer_dataset));
    v1::GetDatasetRequest request;
    request.set_name(*options.tokenizer_dataset);
    NIBBLE_RETURN_IF_ERROR(session.client().Call(&v1::DatasetService::Stub::GetDataset, request).status());
    init.set_tokenizer_dataset(*options.tokenizer_dataset);
  }
  for (const std::string& token : options.special_tokens) {
    NIBBLE_RETURN_IF_ERROR(CheckText("special-token", token));
    init.add_special_tokens(token);
  }
  return init;
}

absl::Status Import(Session& session, const ImportOptions& options) {
  const std::string& path = options.path;
  const std::string& name = options.name;
  NIBBLE_RETURN_IF_ERROR(CheckText("name", name));
  if (options.resume.has_value()) NIBBLE_RETURN_IF_ERROR(base::CheckName("resume", *options.resume));
  if (options.source_name.has_value()) NIBBLE_RETURN_IF_ERROR(CheckText("source-name", *options.source_name));
  NIBBLE_ASSIGN_OR_RETURN(const auto files, client::FilesToImport(path));
  NIBBLE_RETURN_IF_ERROR(CheckFree(session, name));
  NIBBLE_RETURN_IF_ERROR(CheckBase(session, files, options));
  NIBBLE_ASSIGN_OR_RETURN(const std::optional<v1::RandomInit> random, RandomInitOf(session, options));
  for (const auto& file : files) NIBBLE_RETURN_IF_ERROR(CheckText("path", file.name));
  NoteUnknownSource(session, files, options);
  Progress progress(session.terminal);
  // A path with a trailing slash has an empty file name.
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  const std::string shown = (normal.has_filename() ? normal.filename() : normal.parent_path().filename()).string();
  v1::UploadModelHeader header;
  header.set_name(base::IsValidUtf8(shown) ? shown : name);
  header.set_upload_id(options.resume.value_or(base::NewId("upload")));
  if (options.resume.has_value()) header.set_resume_offset(0);  // any value resumes: UploadModel asks the server for it
  const auto upload = session.client().UploadModel(header, files, progress.Show());
  if (!upload.ok()) return WithResumeHint(upload.status(), header.upload_id());
  v1::ImportModelRequest request;
  request.set_upload_id(upload->upload_id());
  request.set_name(name);
  if (options.dtype.has_value())
    request.set_dtype(*options.dtype == "f32" ? v1::MODEL_FORMAT_F32 : v1::MODEL_FORMAT_BF16);
  if (options.base.has_value()) {
    request.set_base_model(*options.base);
  } else if (random.has_value()) {
    *request.mutable_random_init() = *random;
  } else if (const std::string source_name = options.source_name.value_or(SourceNameOf(path));
             base::IsValidUtf8(source_name)) {
    request.set_source_name(source_name);
  }
  request.set_request_id(NewUuid());
  NIBBLE_ASSIGN_OR_RETURN(auto operation, session.client().Call(&ModelService::Stub::ImportModel, request));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Model model, session.Wait<v1::Model>(std::move(operation), progress));
  progress.End();
  PrintModel(session, model);
  return absl::OkStatus();
}

absl::Status List(Session& session) {
  base::Json list = base::Json::array();
  Table table({"NAME", "FORMAT", "SIZE", "PARAMETERS", "BASE", "LOADED", "DIGEST"});
  const v1::ListModelsRequest all;
  NIBBLE_RETURN_IF_ERROR(
      ForEachPage(session, &ModelService::Stub::ListModels, all, [&](const v1::ListModelsResponse& page) {
        for (const v1::Model& model : page.models()) {
          list.push_back(ModelJson(model));
          table.Add({model.name(), Lower(model.format()), base::HumanBytes(model.bytes()),
                     base::StrCat(model.parameters()), model.base_model(),
                     model.damaged()  ? "damaged"
                     : model.loaded() ? "yes"
                                      : "no",
                     model.digest().substr(0, 12)});
        }
        return true;
      }));
  PrintList(session, "models", std::move(list), table);
  return absl::OkStatus();
}

absl::Status Get(Session& session, const std::string& name) {
  NIBBLE_RETURN_IF_ERROR(CheckText("name", name));
  v1::GetModelRequest request;
  request.set_name(name);
  NIBBLE_ASSIGN_OR_RETURN(const v1::Model model, session.client().Call(&ModelService::Stub::GetModel, request));
  PrintModel(session, model);
  return absl::OkStatus();
}

absl::Status Delete(Session& session, const std::string& name) {
  return DeleteNamed(session, &ModelService::Stub::DeleteModel, "name", name);
}

// For load and unload, whose responses have the same fields.
template <typename Answer>
void PrintResidents(Session& session, const Answer& answer) {
  if (session.json) {
    base::Json json = ModelJson(answer.model());
    json["residents"] = ResidentsJson(answer.residents());
    return session.Print(json);
  }
  Table table({"LOADED", "FORMAT", "WEIGHTS", "REQUESTS"});
  for (const auto& model : answer.residents().models()) {
    table.Add(
        {model.name(), Lower(model.format()), base::HumanBytes(model.bytes()), base::StrCat(model.active_requests())});
  }
  table.Print(session.out());
}

absl::Status Load(Session& session, const std::string& name, const std::optional<std::string>& device, bool no_wait) {
  NIBBLE_RETURN_IF_ERROR(CheckText("name", name));
  v1::LoadModelRequest request;
  request.set_name(name);
  if (device.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(*request.mutable_device(), ParseDevice("device", *device));
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, RunOperation<v1::LoadModelResponse>(
                                                 session, &ModelService::Stub::LoadModel, request, no_wait));
  if (answer.has_value()) PrintResidents(session, *answer);
  return absl::OkStatus();
}

absl::Status Unload(Session& session, const std::string& name) {
  NIBBLE_RETURN_IF_ERROR(CheckText("name", name));
  v1::UnloadModelRequest request;
  request.set_name(name);
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, session.client().LongCall(&ModelService::Stub::UnloadModel, request));
  PrintResidents(session, answer);
  return absl::OkStatus();
}

absl::Status Verify(Session& session, const std::string& name, bool no_wait) {
  NIBBLE_RETURN_IF_ERROR(CheckText("name", name));
  v1::VerifyModelRequest request;
  request.set_name(name);
  NIBBLE_ASSIGN_OR_RETURN(const auto ended, RunOperation<v1::VerifyModelResponse>(
                                                session, &ModelService::Stub::VerifyModel, request, no_wait));
  if (!ended.has_value()) return absl::OkStatus();
  const v1::VerifyModelResponse& answer = *ended;
  if (session.json) session.Print(VerifyJson(name, answer));
  if (answer.equal() && answer.rows() >= 1 && answer.differing_rows() == 0) {
    if (!session.json) session.out() << name << ": all " << answer.rows() << " rows are bit-identical\n";
    return absl::OkStatus();
  }
  if (answer.rows() < 1) return absl::DataLossError(base::StrCat(name, ": no row was compared"));
  const auto& first = answer.first_difference();
  return absl::DataLossError(base::StrCat(
      name, ": ", answer.differing_rows(), " of ", answer.rows(), " rows differ, the first is row ", first.row(),
      " (token ", first.token_id(), "): recorded ", first.recorded_digest(), ", computed ", first.computed_digest()));
}

struct AdapterInitOptions {
  std::optional<std::string> method, name, target_pattern;
  std::optional<std::int32_t> rank, iterations;
  std::optional<double> alpha;
  bool rslora = false;
  std::vector<std::string> targets, rank_patterns, alpha_patterns;
};

struct ConvertOptions {
  std::string source, to, name;
  AdapterInitOptions adapter;
  std::optional<std::string> head;
  std::optional<std::string> activations;
  std::optional<std::int32_t> act_outliers;
  std::optional<std::int32_t> nf4_block, scaler_block;
  bool double_quant = true;
  std::optional<std::string> eval_dataset;
};

// Adds "PATTERN=VALUE" to a map.
template <typename Value, typename Parse>
absl::Status AddPattern(const char* field, const std::string& text, Parse parse,
                        google::protobuf::Map<std::string, Value>& out) {
  const std::size_t equals = text.rfind('=');
  Value value = {};
  if (equals != std::string::npos && parse(text.substr(equals + 1), &value)) {
    NIBBLE_RETURN_IF_ERROR(CheckText(field, text));
    if (out.emplace(text.substr(0, equals), value).second) return absl::OkStatus();
    return base::FieldError(field, base::StrCat("has \"", text.substr(0, equals), "\" twice"));
  }
  return base::FieldError(field, base::StrCat("is \"", text, "\", wanted PATTERN=NUMBER"));
}

absl::Status SetAdapterInit(const AdapterInitOptions& options, v1::AdapterInit& init) {
  init.set_method(*options.method == "loftq" ? v1::ADAPTER_INIT_METHOD_LOFTQ : v1::ADAPTER_INIT_METHOD_PISSA);
  NIBBLE_RETURN_IF_ERROR(CheckText("adapter-name", options.name.value_or("")));
  init.set_name(options.name.value_or(""));
  if (options.rank.has_value()) init.set_r(*options.rank);
  if (options.alpha.has_value()) init.set_alpha(*options.alpha);
  if (options.rslora) init.set_use_rslora(true);
  for (const std::string& target : options.targets) {
    NIBBLE_RETURN_IF_ERROR(CheckText("target", target));
    init.add_target_modules(target);
  }
  if (options.target_pattern.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckText("target-pattern", *options.target_pattern));
    init.set_target_pattern(*options.target_pattern);
  }
  const auto parse_int = [](const std::string& text, std::int32_t* value) { return absl::SimpleAtoi(text, value); };
  const auto parse_number = [](const std::string& text, double* value) { return absl::SimpleAtod(text, value); };
  for (const std::string& text : options.rank_patterns)
    NIBBLE_RETURN_IF_ERROR(AddPattern("rank-pattern", text, parse_int, *init.mutable_rank_pattern()));
  for (const std::string& text : options.alpha_patterns)
    NIBBLE_RETURN_IF_ERROR(AddPattern("alpha-pattern", text, parse_number, *init.mutable_alpha_pattern()));
  if (options.iterations.has_value()) init.set_iterations(*options.iterations);
  return absl::OkStatus();
}

v1::ModelFormat Format(const std::string& text) {
  return text == "int8"      ? v1::MODEL_FORMAT_INT8
         : text == "f32"     ? v1::MODEL_FORMAT_F32
         : text == "ternary" ? v1::MODEL_FORMAT_TERNARY
         : text == "nf4"     ? v1::MODEL_FORMAT_NF4
                             : v1::MODEL_FORMAT_BF16;
}

absl::Status Convert(Session& session, const ConvertOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckText("model", options.source));
  NIBBLE_RETURN_IF_ERROR(CheckText("name", options.name));
  v1::ConvertModelRequest request;
  request.set_model(options.source);
  request.set_name(options.name);
  request.set_target(Format(options.to));
  if (options.head.has_value()) request.set_head(Format(*options.head));
  if (options.activations.has_value()) request.set_activations(Format(*options.activations));
  if (options.act_outliers.has_value()) request.set_act_outliers(*options.act_outliers);
  if (options.nf4_block.has_value()) request.set_nf4_block(*options.nf4_block);
  if (options.scaler_block.has_value()) request.set_scaler_block(*options.scaler_block);
  if (!options.double_quant) request.set_double_quant(false);
  if (options.eval_dataset.has_value()) request.set_eval_dataset(*options.eval_dataset);
  if (options.adapter.method.has_value()) {
    NIBBLE_RETURN_IF_ERROR(SetAdapterInit(options.adapter, *request.mutable_adapter_init()));
  }
  request.set_request_id(NewUuid());
  NIBBLE_ASSIGN_OR_RETURN(auto operation, session.client().Call(&ModelService::Stub::ConvertModel, request));
  Progress progress(session.terminal);
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, session.Wait<v1::ConvertModelResponse>(std::move(operation), progress));
  progress.End();
  if (session.json) {
    base::Json json = ModelJson(answer.model());
    json["report"] = ToJson(answer.report());
    if (answer.has_adapter()) json["adapter"] = ModelJson(answer.adapter());
    session.Print(json);
    return absl::OkStatus();
  }
  v1::Model model = answer.model();
  *model.mutable_conversion() = answer.report();
  PrintModel(session, model);
  return absl::OkStatus();
}

struct ExportOptions {
  std::string name, format, linear_class, out;
  std::optional<std::int64_t> max_shard_bytes;
  bool force = false;
};

// Warns if PEFT will not find the base that the exported adapter names.
void WarnOfAnUnusableBase(Session& session, const ExportOptions& options) {
  const std::string config = (std::filesystem::path(options.out) / "adapter_config.json").string();
  const auto text = base::RealFileSystem().Read(config, 1 << 20);
  if (!text.ok()) return;
  const auto json = base::ParseJson(*text);
  if (!json.ok()) return;
  const std::string named = base::GetString(*json, "base_model_name_or_path", config, "").value_or("");
  if (named.ends_with(kGgufEnding)) {
    session.terminal.err << Printable(base::StrCat("warning: adapter_config.json names the base ", named,
                                                   ", a GGUF file, which PEFT does not load: load the base ",
                                                   "first and pass it to PeftModel.from_pretrained. For later jobs, "
                                                   "import the base with --source-name REPOSITORY, ",
                                                   "the hub repository of the original model\n"));
    return;
  }
  v1::GetModelRequest request;
  request.set_name(options.name);
  const auto model = session.client().Call(&ModelService::Stub::GetModel, request);
  if (!model.ok() || named.empty() || named != model->base_model()) return;
  session.terminal.err << Printable(
      base::StrCat("warning: adapter_config.json names the base ", named,
                   ", which only this server knows: export the base too (--format hf, after `models convert --to bf16` "
                   "if it is quantized), load it and pass it to PeftModel.from_pretrained\n"));
}

absl::Status Export(Session& session, const ExportOptions& options) {
  const std::string& name = options.name;
  const std::string& out = options.out;
  NIBBLE_RETURN_IF_ERROR(CheckText("model", name));
  std::error_code error;
  if (std::filesystem::exists(out, error) && !std::filesystem::is_directory(out, error)) {
    return base::WithReason(absl::InvalidArgumentError(base::StrCat("out: ", out, " is not a directory")), "FILE");
  }
  const bool empty = !std::filesystem::exists(out, error) || std::filesystem::is_empty(out, error);
  if (error) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat("out: ", out, " cannot be read: ", error.message())), "FILE");
  }
  if (!options.force && !empty) {
    return base::WithReason(absl::InvalidArgumentError(base::StrCat(
                                "out: ", out, " is not empty; --force writes into it, over files of the same names")),
                            "FILE");
  }
  v1::ExportModelRequest request;
  request.set_model(name);
  request.set_format(options.format == "peft"                 ? v1::EXPORT_FORMAT_PEFT
                     : options.format == "compressed-tensors" ? v1::EXPORT_FORMAT_COMPRESSED_TENSORS
                                                              : v1::EXPORT_FORMAT_HF);
  if (options.linear_class == "bitlinear") request.set_linear_class(v1::HF_LINEAR_CLASS_BITLINEAR);
  if (options.linear_class == "autobitlinear") request.set_linear_class(v1::HF_LINEAR_CLASS_AUTOBITLINEAR);
  if (options.max_shard_bytes.has_value()) request.set_max_shard_bytes(*options.max_shard_bytes);
  request.set_request_id(NewUuid());
  NIBBLE_ASSIGN_OR_RETURN(auto operation, session.client().Call(&ModelService::Stub::ExportModel, request));
  Progress progress(session.terminal);
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, session.Wait<v1::ExportModelResponse>(std::move(operation), progress));
  std::int64_t total = 0;
  for (const auto& file : answer.files()) total += file.size_bytes();
  NIBBLE_ASSIGN_OR_RETURN(
      const auto files, session.client().DownloadArtifact(
                            answer.artifact_id(), out, [&](const std::string& stage, std::int64_t done, std::int64_t) {
                              progress.Update(stage, done, total);
                            }));
  progress.End();
  if (options.format == "peft") WarnOfAnUnusableBase(session, options);
  if (session.json) {
    session.Print({{"model", name}, {"format", options.format}, {"out", out}, {"files", FilesJson(files)}});
    return absl::OkStatus();
  }
  Table table({"FILE", "SIZE"});
  for (const auto& file : files)
    table.Add({(std::filesystem::path(out) / file.path()).string(), base::HumanBytes(file.size_bytes())});
  table.Print(session.out());
  return absl::OkStatus();
}

void AddImport(CLI::App& models, Session& session) {
  CLI::App* sub = models.add_subcommand("import", "Import a local Hugging Face or PEFT directory, or a GGUF file");
  auto o = std::make_shared<ImportOptions>();
  sub->add_option("PATH", o->path, "Directory, or .gguf file")->required();
  sub->add_option("--name", o->name, "Name of the new model")->required();
  sub->add_option("--dtype", o->dtype, "Data type of the stored weights (default bf16)")
      ->check(CLI::IsMember({"bf16", "f32"}));
  sub->add_option("--base", o->base, "For a PEFT adapter: its base model, in nf4, int8, f32 or bf16");
  sub->add_option("--source-name", o->source_name,
                  "Hub repository or path by which PEFT exports of adapters name this base (default: the repository "
                  "if PATH is in the hub's cache, else the absolute PATH)");
  sub->add_flag("--random", o->random,
                "For pre-training: the directory has config.json and a tokenizer, but no weights, which are drawn");
  sub->add_option("--seed", o->seed, "--random: seed of the weights (default 0)")->check(WholeNumber);
  sub->add_option("--tokenizer-dataset", o->tokenizer_dataset,
                  "--random: dataset that a new tokenizer of up to config.json's vocab_size tokens is trained on "
                  "(default: the directory has tokenizer.json)");
  sub->add_option("--special-token", o->special_tokens,
                  "--tokenizer-dataset: a special token, repeatable; the first ends a text (default <|endoftext|>)");
  sub->add_option("--resume", o->resume, "Id of an interrupted upload to continue (see: nibble uploads list)");
  sub->callback([&session, o] { session.command = [&session, o] { return Import(session, *o); }; });
}

void AddAdapterInit(CLI::App& sub, AdapterInitOptions& o) {
  CLI::Option* const init =
      sub.add_option("--adapter-init", o.method,
                     "Also make an adapter for --warm-start-from, with the largest singular values "
                     "of the weights (pissa) or of the error of nf4 (loftq)")
          ->check(CLI::IsMember({"pissa", "loftq"}));
  init->needs(sub.add_option("--adapter-name", o.name, "Name of the adapter")->needs(init));
  sub.add_option("--rank", o.rank, "Rank of the adapter (default 16)")->needs(init);
  sub.add_option("--alpha", o.alpha, "Scale of the adapter (default 32)")->needs(init);
  sub.add_flag("--rslora", o.rslora, "Scale the adapter by alpha / sqrt(rank)")->needs(init);
  sub.add_option("--target", o.targets, "Linears that get an adapter, such as q_proj,v_proj (default all seven)")
      ->delimiter(',')
      ->needs(init);
  sub.add_option("--target-pattern", o.target_pattern, "Regular expression of their paths, instead of --target")
      ->needs(init);
  sub.add_option("--rank-pattern", o.rank_patterns, "PATTERN=RANK for some of them; repeatable")->needs(init);
  sub.add_option("--alpha-pattern", o.alpha_patterns, "PATTERN=ALPHA for some of them; repeatable")->needs(init);
  sub.add_option("--iterations", o.iterations, "loftq: quantizations, 1 to 16 (default 1)")->needs(init);
}

void AddConvert(CLI::App& models, Session& session) {
  CLI::App* sub = models.add_subcommand("convert",
                                        "Convert a model to int8, ternary, nf4 or bf16; an adapter is merged. With "
                                        "--adapter-init: make a base and an adapter that begins with a part of it");
  auto o = std::make_shared<ConvertOptions>();
  sub->add_option("NAME", o->source, "Model or adapter to convert")->required();
  sub->add_option("--to", o->to, "Target format; f32 only with --adapter-init pissa")
      ->required()
      ->check(CLI::IsMember({"int8", "ternary", "nf4", "bf16", "f32"}));
  sub->add_option("--name", o->name, "Name of the new model")->required();
  sub->add_option("--head", o->head,
                  "int8: format of the LM head (default as the base's for an adapter on an int8 base, bf16 for another "
                  "adapter or a model that a job trained, else int8)")
      ->check(CLI::IsMember({"int8", "bf16"}));
  sub->add_option("--activations", o->activations,
                  "int8: what linears multiply, int8 or bf16 rows (default int8, or as in int8 training and in an "
                  "adapter's int8 base)")
      ->check(CLI::IsMember({"int8", "bf16"}));
  sub->add_option(
      "--act-outliers", o->act_outliers,
      "Outliers kept per activation row, 0 to 16 (default 8, or as in int8 training and in an adapter's int8 base)");
  sub->add_option("--nf4-block", o->nf4_block, "nf4: weights per scale, a power of two from 32 to 4096 (default 64)");
  sub->add_option("--scaler-block", o->scaler_block,
                  "nf4: scales that are quantized together, a power of two from 32 to 4096 (default 256)");
  sub->add_flag("!--no-double-quant", o->double_quant, "nf4: leave the scales in f32");
  sub->add_option("--eval-dataset", o->eval_dataset,
                  "Dataset for the loss before and after (default: evaluation data of the model's job)");
  AddAdapterInit(*sub, o->adapter);
  sub->callback([&session, o] { session.command = [&session, o] { return Convert(session, *o); }; });
}

void AddExport(CLI::App& models, Session& session) {
  CLI::App* sub = models.add_subcommand("export", "Write a model's files to a local directory");
  auto o = std::make_shared<ExportOptions>();
  sub->add_option("NAME", o->name, "Model or adapter")->required();
  sub->add_option("--format", o->format, "Format of the files")
      ->required()
      ->check(CLI::IsMember({"peft", "hf", "compressed-tensors"}));
  sub->add_option("--linear-class", o->linear_class,
                  "For a ternary model: linear class of transformers (default bitlinear)")
      ->check(CLI::IsMember({"bitlinear", "autobitlinear"}));
  sub->add_option("--max-shard-bytes", o->max_shard_bytes,
                  "Maximum bytes of tensors per file, for hf and compressed-tensors (default 5000000000)")
      ->check(WholeNumber);
  sub->add_option("--out", o->out, "Output directory; created if missing, refused if it is not empty")->required();
  sub->add_flag("--force", o->force, "Write into --out even if it is not empty; files of the same names are replaced");
  sub->callback([&session, o] { session.command = [&session, o] { return Export(session, *o); }; });
}

}  // namespace

void AddModelCommands(CLI::App& app, Session& session) {
  CLI::App& models = *app.add_subcommand("models", "Import, convert, export, load, verify and compare models");
  models.require_subcommand(1);

  AddImport(models, session);
  AddCommand(models, session, "list", "List all models", &List);
  const auto add = [&](const char* command, const char* help, absl::Status (*run)(Session&, const std::string&)) {
    AddCommandOn(models, session, command, help, "NAME", "Model", run);
  };
  add("get", "Show a model", &Get);
  add("delete", "Delete a model", &Delete);
  {
    CLI::App* sub = models.add_subcommand("load", "Load a model for serving");
    auto name = std::make_shared<std::string>();
    auto device = std::make_shared<std::optional<std::string>>();
    sub->add_option("NAME", *name, "Model")->required();
    sub->add_option("--device", *device, "auto, cpu or cuda:N (default: the server's choice)");
    const auto no_wait = AddNoWait(*sub);
    sub->callback([&session, name, device, no_wait] {
      session.command = [&session, name, device, no_wait] { return Load(session, *name, *device, *no_wait); };
    });
  }
  add("unload", "Unload a model", &Unload);
  {
    CLI::App* sub =
        models.add_subcommand("verify", "Replay the model's record; exit 0 only if every row is bit-identical");
    auto name = std::make_shared<std::string>();
    sub->add_option("NAME", *name, "Model")->required();
    const auto no_wait = AddNoWait(*sub);
    sub->callback([&session, name, no_wait] {
      session.command = [&session, name, no_wait] { return Verify(session, *name, *no_wait); };
    });
  }
  AddCompareCommand(models, session);
  AddConvert(models, session);
  AddExport(models, session);
}

}  // namespace nibble::cli
