#include "server/model/adapter.h"

#include <algorithm>
#include <cmath>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/saved_modules.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;

constexpr LinearKind kKinds[] = {LinearKind::kQ,    LinearKind::kK,  LinearKind::kV,   LinearKind::kO,
                                 LinearKind::kGate, LinearKind::kUp, LinearKind::kDown};

absl::Status Unsupported(std::string_view key, const Json& value) {
  return base::WithReason(absl::UnimplementedError(StrCat(kAdapterConfigFile, ": \"", key, "\" is ",
                                                          base::Dump(value).substr(0, 64), ", which is not supported")),
                          "UNSUPPORTED_ADAPTER");
}

// Keys that are read below, and keys that do not change how a trained adapter is computed.
constexpr std::string_view kKnownKeys[] = {"peft_type",
                                           "task_type",
                                           "r",
                                           "lora_alpha",
                                           "lora_dropout",
                                           "use_rslora",
                                           "use_dora",
                                           "target_modules",
                                           "rank_pattern",
                                           "alpha_pattern",
                                           "modules_to_save",
                                           "ensure_weight_tying",
                                           "revision",
                                           "auto_mapping",
                                           "peft_version",
                                           "inference_mode",
                                           "megatron_core",
                                           "loftq_config",
                                           "init_lora_weights",
                                           "eva_config",
                                           "corda_config",
                                           "lora_ga_config",
                                           "runtime_config",
                                           "qalora_group_size",
                                           "base_model_name_or_path",
                                           kBaseDigestKey};

// True for values of init_lora_weights that leave the base unchanged. The others (pissa, olora, corda, loftq, ...)
// train on a changed base.
bool KeepsTheBase(const Json& init) {
  return init.is_null() || init.is_boolean() || init == "gaussian" || init == "eva" || init == "orthogonal";
}

constexpr std::size_t kDigestDigits = 64;

// True for values that mean that an option is not used: null, false, "none", 0, an empty list or object.
bool IsOff(const Json& value) {
  return value.is_null() || value == false || value == "none" || value == 0 ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Like PEFT, writes a whole number without a decimal point.
Json AlphaJson(double alpha) {
  if (alpha == std::floor(alpha) && std::fabs(alpha) < 0x1p53) return static_cast<std::int64_t>(alpha);
  return alpha;
}

template <typename Value>
Value FirstMatch(const std::vector<std::pair<ModulePattern, Value>>& patterns, const std::string& path, Value other) {
  for (const auto& [pattern, value] : patterns) {
    if (pattern.MatchesEnd(path)) return value;
  }
  return other;
}

absl::StatusOr<std::int64_t> ReadRank(const Json& object, const std::string& key) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t rank, base::GetInt(object, key, kAdapterConfigFile));
  if (rank >= 1 && rank <= kMaxLoraRank) return rank;
  return absl::InvalidArgumentError(
      StrCat(kAdapterConfigFile, ": \"", key, "\" is ", rank, ", wanted 1 to ", kMaxLoraRank));
}
absl::StatusOr<double> ReadAlpha(const Json& object, const std::string& key) {
  NIBBLE_ASSIGN_OR_RETURN(const double alpha, base::GetNumber(object, key, kAdapterConfigFile));
  if (std::isfinite(alpha) && alpha > 0) return alpha;
  return absl::InvalidArgumentError(StrCat(kAdapterConfigFile, ": \"", key, "\" is ", alpha, ", wanted above 0"));
}

absl::StatusOr<ModulePattern> ParsePattern(std::string_view key, const std::string& text) {
  auto pattern = ModulePattern::Create(text);
  if (pattern.ok()) return pattern;
  return base::WithReason(
      absl::UnimplementedError(StrCat(kAdapterConfigFile, ": \"", key, "\" ", base::ToStd(pattern.status().message()))),
      "UNSUPPORTED_ADAPTER");
}

// An object of patterns, or null. read(object, pattern): the value of a pattern.
template <typename Read, typename Value>
absl::Status ParsePatterns(const Json& json, const char* key, Read read,
                           std::vector<std::pair<ModulePattern, Value>>& out) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return absl::OkStatus();
  if (!found->is_object() || found->size() > kMaxPatterns) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"", key, "\" is not an object of at most ", kMaxPatterns, " patterns"));
  }
  for (const auto& item : found->items()) {
    NIBBLE_ASSIGN_OR_RETURN(ModulePattern pattern, ParsePattern(key, item.key()));
    NIBBLE_ASSIGN_OR_RETURN(const Value value, read(*found, item.key()));
    out.emplace_back(std::move(pattern), value);
  }
  return absl::OkStatus();
}

absl::Status ParseModulesToSave(const Json& json, AdapterConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(config.ensure_weight_tying,
                          base::GetBool(json, "ensure_weight_tying", kAdapterConfigFile, false));
  const auto modules = json.find("modules_to_save");
  if (modules == json.end() || modules->is_null()) return absl::OkStatus();
  const bool texts = modules->is_array() && modules->size() <= kMaxPatterns &&
                     std::all_of(modules->begin(), modules->end(), [](const Json& module) {
                       return module.is_string() && !module.get_ref<const std::string&>().empty();
                     });
  if (!texts) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"modules_to_save\" is not a list of at most ", kMaxPatterns, " module names"));
  }
  config.modules_to_save = modules->get<std::vector<std::string>>();
  return absl::OkStatus();
}

absl::Status ParseTargets(const Json& json, AdapterConfig& config) {
  const auto targets = json.find("target_modules");
  // PEFT replaces "all-linear" by the names of the modules when it saves, so that text is an error here.
  if (targets != json.end() && targets->is_string() && *targets != "all-linear") {
    NIBBLE_ASSIGN_OR_RETURN(config.target_pattern, ParsePattern("target_modules", targets->get<std::string>()));
    return absl::OkStatus();
  }
  if (targets == json.end() || !targets->is_array() || targets->empty()) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"target_modules\" is neither a list of one or more module names nor a pattern"));
  }
  for (const LinearKind kind : kKinds) {
    if (std::find(targets->begin(), targets->end(), Json(ShortName(kind))) != targets->end())
      config.targets.push_back(kind);
  }
  if (config.targets.size() != targets->size()) return Unsupported("target_modules", *targets);
  return absl::OkStatus();
}

}  // namespace

std::optional<LinearAdapter> AdapterConfig::On(const std::string& path) const {
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](LinearKind each) {
    return path.ends_with(StrCat(".", ModuleSuffix(each)));
  });
  if (kind == std::end(kKinds)) return std::nullopt;
  const bool is_target = target_pattern.has_value() ? target_pattern->MatchesPath(path)
                                                    : std::find(targets.begin(), targets.end(), *kind) != targets.end();
  if (!is_target) return std::nullopt;
  LinearAdapter adapter = {.rank = FirstMatch(rank_pattern, path, rank)};
  const double its_alpha = FirstMatch(alpha_pattern, path, alpha);
  const auto r = static_cast<double>(adapter.rank);
  adapter.scaling = its_alpha / (rslora ? std::sqrt(r) : r);
  return adapter;
}

bool AdapterConfig::Saves(const std::string& path) const {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& text) { return path.ends_with(text); });
}

Json ToPeftConfig(const AdapterConfig& config) {
  Json json = Json::object();
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = config.base_model_name_or_path;
  json["r"] = config.rank;
  json["lora_alpha"] = AlphaJson(config.alpha);
  json["lora_dropout"] = config.dropout;
  json["use_rslora"] = config.rslora;
  json["use_dora"] = config.dora;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["modules_to_save"] = config.modules_to_save.empty() ? Json(nullptr) : Json(config.modules_to_save);
  if (config.ensure_weight_tying) json["ensure_weight_tying"] = true;
  Json& ranks = json["rank_pattern"] = Json::object();
  for (const auto& [pattern, rank] : config.rank_pattern) ranks[pattern.text()] = rank;
  Json& alphas = json["alpha_pattern"] = Json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern) alphas[pattern.text()] = AlphaJson(alpha);
  if (config.target_pattern.has_value()) {
    json["target_modules"] = config.target_pattern->text();
    return json;
  }
  Json& targets = json["target_modules"] = Json::array();
  for (const LinearKind kind : config.targets) targets.push_back(ShortName(kind));
  return json;
}

absl::StatusOr<AdapterConfig> ParsePeftConfig(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError(StrCat(kAdapterConfigFile, ": not a JSON object"));
  AdapterConfig config;
  NIBBLE_ASSIGN_OR_RETURN(const std::string type, base::GetString(json, "peft_type", kAdapterConfigFile));
  if (type != "LORA") return Unsupported("peft_type", type);
  for (const auto& [key, value] : json.items()) {
    if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) == std::end(kKnownKeys) && !IsOff(value)) {
      return Unsupported(key, value);
    }
  }
  const auto task = json.find("task_type");
  if (task != json.end() && !task->is_null() && *task != "CAUSAL_LM") return Unsupported("task_type", *task);
  const auto init = json.find("init_lora_weights");
  if (init != json.end() && !KeepsTheBase(*init)) return Unsupported("init_lora_weights", *init);
  NIBBLE_ASSIGN_OR_RETURN(config.rank, ReadRank(json, "r"));
  NIBBLE_ASSIGN_OR_RETURN(config.alpha, ReadAlpha(json, "lora_alpha"));
  NIBBLE_ASSIGN_OR_RETURN(config.dropout, base::GetNumber(json, "lora_dropout", kAdapterConfigFile, 0.0));
  NIBBLE_ASSIGN_OR_RETURN(config.rslora, base::GetBool(json, "use_rslora", kAdapterConfigFile, false));
  NIBBLE_ASSIGN_OR_RETURN(config.dora, base::GetBool(json, "use_dora", kAdapterConfigFile, false));
  NIBBLE_ASSIGN_OR_RETURN(config.base_model_name_or_path,
                          base::GetString(json, "base_model_name_or_path", kAdapterConfigFile, ""));
  NIBBLE_ASSIGN_OR_RETURN(config.base_digest, base::GetString(json, kBaseDigestKey, kAdapterConfigFile, ""));
  NIBBLE_RETURN_IF_ERROR(CheckBaseDigest(config.base_digest, kAdapterConfigFile));
  NIBBLE_RETURN_IF_ERROR(ParsePatterns(json, "rank_pattern", ReadRank, config.rank_pattern));
  NIBBLE_RETURN_IF_ERROR(ParsePatterns(json, "alpha_pattern", ReadAlpha, config.alpha_pattern));
  NIBBLE_RETURN_IF_ERROR(ParseModulesToSave(json, config));
  NIBBLE_RETURN_IF_ERROR(ParseTargets(json, config));
  return config;
}

absl::Status CheckBaseDigest(const std::string& digest, const char* file) {
  if (digest.empty() ||
      (digest.size() == kDigestDigits && digest.find_first_not_of("0123456789abcdef") == std::string::npos)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat(file, ": \"", kBaseDigestKey, "\" is not a SHA-256 of ", kDigestDigits, " lower-case hex digits"));
}

std::string LoraModule(const std::string& path) { return StrCat("base_model.model.", path); }
std::string LoraAName(std::int64_t layer, LinearKind kind) {
  return LoraModule(ModulePath(layer, kind)) + kLoraASuffix;
}
std::string LoraBName(std::int64_t layer, LinearKind kind) {
  return LoraModule(ModulePath(layer, kind)) + kLoraBSuffix;
}

std::vector<TensorPlan> AdapterTensors(const ModelConfig& model, const AdapterConfig& adapter) {
  std::vector<TensorPlan> plan;
  for (const TensorSpec& tensor : SavedTensors(model, adapter)) {
    plan.push_back({SavedName(tensor.name), kernels::DType::kF32, tensor.shape});
  }
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const LinearKind kind : kKinds) {
      const std::optional<LinearAdapter> on = adapter.On(ModulePath(layer, kind));
      if (!on.has_value()) continue;
      plan.push_back({LoraAName(layer, kind), kernels::DType::kF32, {on->rank, InFeatures(model, kind)}});
      plan.push_back({LoraBName(layer, kind), kernels::DType::kF32, {OutFeatures(model, kind), on->rank}});
      if (adapter.dora) {
        const std::string name = LoraModule(ModulePath(layer, kind)) + kMagnitudeSuffix;
        plan.push_back({name, kernels::DType::kF32, {OutFeatures(model, kind)}});
      }
    }
  }
  return plan;
}

}  // namespace nibble::model
