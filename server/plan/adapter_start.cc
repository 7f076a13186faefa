#include "server/plan/adapter_start.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/jobs/qlora_method.h"
#include "server/model/artifact.h"
#include "server/model/file_names.h"
#include "server/model/tensor_table.h"
#include "server/plan/method_plan.h"
#include "server/store/base_cache.h"

namespace nibble::plan {
namespace {

using base::FieldError;
using base::StrCat;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr char kField[] = "warm_start_from";

std::string SortedList(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  return absl::StrJoin(texts, ", ");
}

std::string Targets(const model::AdapterConfig& adapter) {
  std::vector<std::string> names;
  for (const model::LinearKind kind : adapter.targets) names.emplace_back(model::ShortName(kind));
  return SortedList(std::move(names));
}

std::string TargetPattern(const model::AdapterConfig& adapter) {
  return adapter.target_pattern.has_value() ? adapter.target_pattern->text() : "not set";
}

std::string SavedModules(const model::AdapterConfig& adapter) {
  return adapter.modules_to_save.empty() ? "not set" : SortedList(adapter.modules_to_save);
}

// The patterns with their values, as text. A linear that two patterns match is refused, so their order is free.
template <typename Value>
std::string Patterns(const std::vector<std::pair<model::ModulePattern, Value>>& patterns) {
  if (patterns.empty()) return "not set";
  std::vector<std::string> texts;
  texts.reserve(patterns.size());
  for (const auto& [pattern, value] : patterns) texts.push_back(StrCat(pattern.text(), ": ", value));
  return SortedList(std::move(texts));
}

// The digest of the weights on which adapters of the job are trained. info: of base_model. "" if it is unknown before
// the job runs.
absl::StatusOr<std::string> TrainedOn(const store::StateDirectory& state, const jobs::JobSpec& spec,
                                      const store::StoredModel& base_model, const model::ArtifactInfo& info) {
  if (spec.method != jobs::kMethodQLora || info.format == model::Format::kNf4) return info.weights_digest;
  const store::BaseCache cache(state.files, state.paths.bases(), {});
  const std::string nf4 =
      cache.Path(store::Nf4BaseKey(base_model.manifest_digest, model::KeyOf(jobs::Nf4OptionsOf(spec.qlora))));
  const auto text = state.files.Read(base::JoinPath(nf4, model::kInfoFile), kMaxConfigBytes);
  if (!text.ok()) return std::string();  // not cached; or unreadable now, as the trainer will report
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(*text));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo quantized, model::ParseArtifactInfo(json));
  return quantized.weights_digest;
}

// Refuses options with which a base in f32 or bf16 would become another nf4 base than the adapter's.
absl::Status CheckNf4Form(const jobs::JobSpec& spec, const model::ArtifactInfo& base,
                          const model::ArtifactInfo& adapter) {
  if (spec.method != jobs::kMethodQLora || adapter.weight_format() != model::Format::kNf4) return absl::OkStatus();
  const model::Nf4Options options = jobs::Nf4OptionsOf(spec.qlora);
  if (base.format == model::Format::kNf4 || options == adapter.nf4) return absl::OkStatus();
  const char* field = options.block != adapter.nf4.block                 ? "qlora.nf4_block"
                      : options.double_quant != adapter.nf4.double_quant ? "qlora.double_quant"
                                                                         : "qlora.scaler_block";
  return FieldError(field, StrCat("gives a base with ", Describe(options), ", wanted ", Describe(adapter.nf4),
                                  ", as in the adapter ", spec.warm_start_from));
}

}  // namespace

absl::Status CheckAdapterFits(const jobs::JobSpec& spec, const model::AdapterConfig& adapter) {
  const jobs::LoraMethod* method = PlanOf(spec).AdapterOptions(spec);
  if (method == nullptr) {
    return FieldError(kField, StrCat("names the adapter ", spec.warm_start_from, ", but method ", spec.method,
                                     " trains no adapter: wanted a checkpoint (JOB/STEP) of a job with this method"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig trained, jobs::AdapterOf(*method));
  const auto compare = [&](const char* field, const auto& got, const auto& wanted) -> absl::Status {
    if (got == wanted) return absl::OkStatus();
    return FieldError(StrCat(spec.method, ".", field),
                      StrCat("is ", got, ", wanted ", wanted, ", as in the adapter ", spec.warm_start_from));
  };
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  NIBBLE_RETURN_IF_ERROR(compare("r", trained.rank, adapter.rank));
  NIBBLE_RETURN_IF_ERROR(compare("target_pattern", TargetPattern(trained), TargetPattern(adapter)));
  NIBBLE_RETURN_IF_ERROR(compare("target_modules", Targets(trained), Targets(adapter)));
  NIBBLE_RETURN_IF_ERROR(compare("rank_pattern", Patterns(trained.rank_pattern), Patterns(adapter.rank_pattern)));
  NIBBLE_RETURN_IF_ERROR(compare("alpha_pattern", Patterns(trained.alpha_pattern), Patterns(adapter.alpha_pattern)));
  // With another scale the same weights would be another adapter.
  NIBBLE_RETURN_IF_ERROR(compare("alpha", trained.alpha, adapter.alpha));
  NIBBLE_RETURN_IF_ERROR(compare("use_rslora", text(trained.rslora), text(adapter.rslora)));
  NIBBLE_RETURN_IF_ERROR(compare("use_dora", text(trained.dora), text(adapter.dora)));
  return compare("modules_to_save", SavedModules(trained), SavedModules(adapter));
}

absl::Status CheckAdapterStart(const store::StateDirectory& state, const jobs::JobSpec& spec) {
  const std::string name = jobs::StartModel(spec);
  if (name.empty()) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel stored, state.models->Get(name));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(stored.info));
  if (info.format != model::Format::kLora) {
    return FieldError(kField, StrCat("names the model ", name, " in ", model::Name(info.format),
                                     ", wanted an adapter (format lora) or a checkpoint (JOB/STEP)"));
  }
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string text,
      state.files.Read(base::JoinPath(stored.directory, model::kAdapterConfigFile), kMaxConfigBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  NIBBLE_ASSIGN_OR_RETURN(const model::AdapterConfig adapter, model::ParsePeftConfig(json));
  NIBBLE_RETURN_IF_ERROR(CheckAdapterFits(spec, adapter));
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, state.models->Get(spec.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo base, model::ParseArtifactInfo(base_model.info));
  NIBBLE_RETURN_IF_ERROR(CheckNf4Form(spec, base, info));
  NIBBLE_ASSIGN_OR_RETURN(const std::string got, TrainedOn(state, spec, base_model, base));
  if (got.empty() || got == info.base_digest) return absl::OkStatus();
  return base::WithReason(absl::FailedPreconditionError(
                              StrCat("base_model: method ", spec.method, " trains on weights ", got, " of \"",
                                     spec.base_model, "\", wanted ", info.base_digest, ", the base of adapter ", name)),
                          "BASE_MISMATCH", {{"field", "base_model"}, {"got", got}, {"wanted", info.base_digest}});
}

}  // namespace nibble::plan
