#include "server/model/adapter.h"

#include <algorithm>
#include <cmath>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

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
                                           "target_modules",
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

}  // namespace

double AdapterConfig::scaling() const {
  return rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

bool AdapterConfig::has_target(LinearKind kind) const {
  return std::find(targets.begin(), targets.end(), kind) != targets.end();
}

Json ToPeftConfig(const AdapterConfig& config) {
  Json json = Json::object();
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  json["base_model_name_or_path"] = config.base_model_name_or_path;
  json["r"] = config.rank;
  // Like PEFT, write a whole number without a decimal point.
  if (config.alpha == std::floor(config.alpha) && std::fabs(config.alpha) < 0x1p53) {
    json["lora_alpha"] = static_cast<std::int64_t>(config.alpha);
  } else {
    json["lora_alpha"] = config.alpha;
  }
  json["lora_dropout"] = config.dropout;
  json["use_rslora"] = config.rslora;
  json["bias"] = "none";
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["modules_to_save"] = nullptr;
  json["rank_pattern"] = Json::object();
  json["alpha_pattern"] = Json::object();
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
  NIBBLE_ASSIGN_OR_RETURN(config.rank, base::GetInt(json, "r", kAdapterConfigFile));
  if (config.rank < 1 || config.rank > kMaxLoraRank) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"r\" is ", config.rank, ", wanted 1 to ", kMaxLoraRank));
  }
  NIBBLE_ASSIGN_OR_RETURN(config.alpha, base::GetNumber(json, "lora_alpha", kAdapterConfigFile));
  if (!std::isfinite(config.alpha) || config.alpha <= 0) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"lora_alpha\" is ", config.alpha, ", wanted above 0"));
  }
  NIBBLE_ASSIGN_OR_RETURN(config.dropout, base::GetNumber(json, "lora_dropout", kAdapterConfigFile, 0.0));
  NIBBLE_ASSIGN_OR_RETURN(config.rslora, base::GetBool(json, "use_rslora", kAdapterConfigFile, false));
  NIBBLE_ASSIGN_OR_RETURN(config.base_model_name_or_path,
                          base::GetString(json, "base_model_name_or_path", kAdapterConfigFile, ""));
  NIBBLE_ASSIGN_OR_RETURN(config.base_digest, base::GetString(json, kBaseDigestKey, kAdapterConfigFile, ""));
  NIBBLE_RETURN_IF_ERROR(CheckBaseDigest(config.base_digest, kAdapterConfigFile));
  const auto targets = json.find("target_modules");
  if (targets == json.end() || !targets->is_array() || targets->empty()) {
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"target_modules\" is not a list of one or more module names"));
  }
  for (const LinearKind kind : kKinds) {
    if (std::find(targets->begin(), targets->end(), Json(ShortName(kind))) != targets->end())
      config.targets.push_back(kind);
  }
  if (config.targets.size() != targets->size()) return Unsupported("target_modules", *targets);
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

std::string LoraAName(std::int64_t layer, LinearKind kind) {
  return StrCat("base_model.model.", ModulePath(layer, kind), ".lora_A.weight");
}
std::string LoraBName(std::int64_t layer, LinearKind kind) {
  return StrCat("base_model.model.", ModulePath(layer, kind), ".lora_B.weight");
}

std::vector<TensorPlan> AdapterTensors(const ModelConfig& model, const AdapterConfig& adapter) {
  std::vector<TensorPlan> plan;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const LinearKind kind : kKinds) {
      if (!adapter.has_target(kind)) continue;
      plan.push_back({LoraAName(layer, kind), kernels::DType::kF32, {adapter.rank, InFeatures(model, kind)}});
      plan.push_back({LoraBName(layer, kind), kernels::DType::kF32, {OutFeatures(model, kind), adapter.rank}});
    }
  }
  return plan;
}

}  // namespace nibble::model
