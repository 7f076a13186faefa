#include "server/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/family.h"
#include "server/model/file_names.h"

namespace nibble::model {
namespace {

using base::Json;
using base::StrCat;

constexpr const char* kWhere = kConfigFile;
constexpr std::int64_t kMaxHidden = 1 << 17;
constexpr std::int64_t kMaxLayers = 1 << 12;
constexpr std::int64_t kMaxHeads = 1 << 12;
constexpr std::int64_t kMaxHeadDim = 1 << 10;
constexpr std::int64_t kMaxFfn = 1 << 20;
constexpr std::int64_t kMaxVocab = 1 << 22;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

absl::Status Unsupported(std::string_view what) {
  return base::WithReason(absl::UnimplementedError(StrCat(kWhere, ": ", what)), "UNSUPPORTED_MODEL");
}

absl::Status Bad(std::string_view key, std::string_view got, std::string_view wanted) {
  return absl::InvalidArgumentError(StrCat(kWhere, ": \"", key, "\" is ", got, ", wanted ", wanted));
}

const Json* Find(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

// Here and below, `absent` is the value of an absent key; null if the key is required.
absl::StatusOr<std::int64_t> Size(const Json& json, const char* key, std::int64_t max, const std::int64_t* absent) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t value, absent == nullptr ? base::GetInt(json, key, kWhere)
                                                                      : base::GetInt(json, key, kWhere, *absent));
  if (value < 1 || value > max) return Bad(key, StrCat(value), StrCat("1 to ", max));
  return value;
}

absl::StatusOr<double> Positive(const Json& json, const char* key, const double* absent) {
  NIBBLE_ASSIGN_OR_RETURN(const double value, absent == nullptr ? base::GetNumber(json, key, kWhere)
                                                                : base::GetNumber(json, key, kWhere, *absent));
  if (!(value > 0.0) || !std::isfinite(value)) return Bad(key, StrCat(value), "a positive number");
  return value;
}

// Reads transformers' rope_parameters (version 5) or rope_scaling (version 4), whose theta may be outside the
// dictionary.
absl::StatusOr<RopeConfig> ParseRope(const Json& json, double theta, std::int64_t max_positions) {
  if (!json.is_object()) return Bad("rope_parameters / rope_scaling", base::Dump(json).substr(0, 64), "an object");
  RopeConfig rope;
  NIBBLE_ASSIGN_OR_RETURN(rope.theta, Positive(json, "rope_theta", &theta));
  NIBBLE_ASSIGN_OR_RETURN(const std::string old_type, base::GetString(json, "type", kWhere, "default"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string type, base::GetString(json, "rope_type", kWhere, old_type));
  NIBBLE_ASSIGN_OR_RETURN(const double partial, base::GetNumber(json, "partial_rotary_factor", kWhere, 1.0));
  if (partial != 1.0) return Unsupported(StrCat("partial_rotary_factor ", partial));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") return Unsupported(StrCat("rope type \"", type, "\""));
  NIBBLE_ASSIGN_OR_RETURN(rope.factor, Positive(json, "factor", nullptr));
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
    return rope;
  }
  rope.scaling = RopeConfig::Scaling::kLlama3;
  NIBBLE_ASSIGN_OR_RETURN(rope.low_freq_factor, Positive(json, "low_freq_factor", nullptr));
  NIBBLE_ASSIGN_OR_RETURN(rope.high_freq_factor, Positive(json, "high_freq_factor", nullptr));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return Bad("high_freq_factor", StrCat(rope.high_freq_factor), "more than low_freq_factor");
  }
  NIBBLE_ASSIGN_OR_RETURN(rope.original_max_positions,
                          Size(json, "original_max_position_embeddings", kMaxPositions, &max_positions));
  return rope;
}

bool Same(const RopeConfig& a, const RopeConfig& b) {
  return a.theta == b.theta && a.scaling == b.scaling && a.factor == b.factor &&
         a.low_freq_factor == b.low_freq_factor && a.high_freq_factor == b.high_freq_factor &&
         a.original_max_positions == b.original_max_positions;
}

absl::StatusOr<RopeConfig> ReadRope(const Json& json, double default_theta, std::int64_t max_positions) {
  NIBBLE_ASSIGN_OR_RETURN(const double theta, Positive(json, "rope_theta", &default_theta));
  const Json* parameters = Find(json, "rope_parameters");
  const Json* scaling = Find(json, "rope_scaling");
  RopeConfig plain;
  plain.theta = theta;
  if (parameters == nullptr && scaling == nullptr) return plain;
  NIBBLE_ASSIGN_OR_RETURN(const RopeConfig rope,
                          ParseRope(parameters != nullptr ? *parameters : *scaling, theta, max_positions));
  if (parameters != nullptr && scaling != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const RopeConfig other, ParseRope(*scaling, theta, max_positions));
    if (!Same(rope, other)) {
      return Bad("rope_parameters", "not equal to \"rope_scaling\"", "one of them, or both equal");
    }
  }
  return rope;
}

absl::Status CheckTokenId(const char* key, std::int64_t id, std::int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) return Bad(key, StrCat(id), StrCat("0 to ", vocab_size - 1));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::int32_t>> TokenId(const Json& json, const char* key, std::int64_t vocab_size) {
  if (Find(json, key) == nullptr) return std::optional<std::int32_t>();
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t id, base::GetInt(json, key, kWhere));
  // Old LLaMA conversions write -1 for "none".
  if (id == -1) return std::optional<std::int32_t>();
  NIBBLE_RETURN_IF_ERROR(CheckTokenId(key, id, vocab_size));
  return std::optional<std::int32_t>(static_cast<std::int32_t>(id));
}

absl::Status ReadTokenIds(const Json& json, ModelConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(config.bos_token_id, TokenId(json, "bos_token_id", config.vocab_size));
  NIBBLE_ASSIGN_OR_RETURN(config.pad_token_id, TokenId(json, "pad_token_id", config.vocab_size));
  const Json* eos = Find(json, "eos_token_id");
  if (eos == nullptr) return absl::OkStatus();
  if (!eos->is_array()) {
    NIBBLE_ASSIGN_OR_RETURN(const auto id, TokenId(json, "eos_token_id", config.vocab_size));
    if (id.has_value()) config.eos_token_ids.push_back(*id);
    return absl::OkStatus();
  }
  if (eos->size() > 256) return Bad("eos_token_id", StrCat(eos->size(), " ids"), "at most 256");
  for (const Json& item : *eos) {
    const Json holder = {{"eos_token_id", item}};
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t id, base::GetInt(holder, "eos_token_id", kWhere));
    NIBBLE_RETURN_IF_ERROR(CheckTokenId("eos_token_id", id, config.vocab_size));
    config.eos_token_ids.push_back(static_cast<std::int32_t>(id));
  }
  return absl::OkStatus();
}

// Refuses, by name, unsupported settings that would change the arithmetic.
absl::Status CheckSupported(const Json& json) {
  if (const Json* quantization = Find(json, "quantization_config"); quantization != nullptr) {
    return Unsupported(StrCat("quantization_config ", base::Dump(*quantization).substr(0, 80)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const double partial, base::GetNumber(json, "partial_rotary_factor", kWhere, 1.0));
  if (partial != 1.0) return Unsupported(StrCat("partial_rotary_factor ", partial));
  const Json* layer_types = Find(json, "layer_types");
  if (layer_types == nullptr) return absl::OkStatus();
  if (!layer_types->is_array()) return Bad("layer_types", base::Dump(*layer_types).substr(0, 64), "a list of names");
  for (const Json& type : *layer_types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Unsupported(StrCat("layer_types with ", base::Dump(type).substr(0, 64)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Activation> ReadActivation(const Json& json, Activation absent) {
  if (Find(json, "hidden_act") == nullptr) return absent;
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, "hidden_act", kWhere));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "relu2") return Activation::kRelu2;
  return Unsupported(StrCat("hidden_act \"", name.substr(0, 64), "\" (supported: silu, relu2)"));
}

// The window of layers with sliding attention, in tokens; 0 if every layer sees all tokens.
absl::StatusOr<std::int64_t> ReadSlidingWindow(const Json& json, const Family& family, std::int64_t num_layers) {
  if (json.contains("sliding_window") && json["sliding_window"].is_null()) return std::int64_t{0};
  // Qwen2 and Qwen3, the only families with use_sliding_window, which is false by default.
  const bool has_switch = family.attention_bias == Family::AttentionBias::kQkvAlways || family.qk_norm;
  if (family.sliding_window == 0 && Find(json, "sliding_window") == nullptr) return std::int64_t{0};
  NIBBLE_ASSIGN_OR_RETURN(const bool used, base::GetBool(json, "use_sliding_window", kWhere, !has_switch));
  if (!used) return std::int64_t{0};
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t window,
                          Size(json, "sliding_window", kMaxPositions, &family.sliding_window));
  if (const Json* types = Find(json, "layer_types"); types != nullptr) {
    return std::find(types->begin(), types->end(), Json("sliding_attention")) == types->end() ? 0 : window;
  }
  if (has_switch) {
    const std::int64_t absent = 28;  // default of Qwen2Config and Qwen3Config
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t first, base::GetInt(json, "max_window_layers", kWhere, absent));
    if (first >= num_layers) return std::int64_t{0};
  }
  return window;
}

constexpr std::pair<const char*, NormPlacement> kNormPlacements[] = {
    {"block", NormPlacement::kBlock},
    {"block_and_sub", NormPlacement::kBlockAndSub},
    {"linear", NormPlacement::kLinear},
    {"block_and_linear", NormPlacement::kBlockAndLinear}};

absl::Status ReadNorms(const Json& json, const Family& family, ModelConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(config.rms_norm_eps, Positive(json, "rms_norm_eps", &family.rms_norm_eps));
  NIBBLE_ASSIGN_OR_RETURN(config.linear_norm_eps, Positive(json, "nibble_linear_norm_eps", &config.rms_norm_eps));
  if (config.rms_norm_eps >= 1.0) return Bad("rms_norm_eps", StrCat(config.rms_norm_eps), "less than 1");
  if (config.linear_norm_eps >= 1.0)
    return Bad("nibble_linear_norm_eps", StrCat(config.linear_norm_eps), "less than 1");
  config.norms = family.norms;
  if (Find(json, "nibble_norms") == nullptr) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(json, "nibble_norms", kWhere));
  for (const auto& [text, placement] : kNormPlacements) {
    if (name != text) continue;
    config.norms = placement;
    return absl::OkStatus();
  }
  return Bad("nibble_norms", StrCat("\"", name.substr(0, 64), "\""),
             "block, block_and_sub, linear or block_and_linear");
}

absl::Status ReadBiases(const Json& json, const Family& family, ModelConfig& config) {
  NIBBLE_ASSIGN_OR_RETURN(const bool attention_bias, base::GetBool(json, "attention_bias", kWhere, false));
  NIBBLE_ASSIGN_OR_RETURN(const bool mlp_bias, base::GetBool(json, "mlp_bias", kWhere, false));
  const bool has_key = family.attention_bias == Family::AttentionBias::kFromConfig;
  config.qkv_bias = family.attention_bias == Family::AttentionBias::kQkvAlways || (has_key && attention_bias);
  config.o_bias = has_key && attention_bias;
  config.mlp_bias = family.mlp_bias_key && mlp_bias;
  return absl::OkStatus();
}

Json RopeJson(const RopeConfig& rope) {
  Json json = {{"rope_theta", rope.theta}};
  switch (rope.scaling) {
    case RopeConfig::Scaling::kNone: json["rope_type"] = "default"; break;
    case RopeConfig::Scaling::kLinear:
      json["rope_type"] = "linear";
      json["factor"] = rope.factor;
      break;
    case RopeConfig::Scaling::kLlama3:
      json["rope_type"] = "llama3";
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      json["original_max_position_embeddings"] = rope.original_max_positions;
      break;
  }
  return json;
}

}  // namespace

std::string ModelConfig::limit_text(std::int64_t limit) const {
  return StrCat(limit, " positions", limit < max_positions && limit == sliding_window ? " (its sliding window)" : "");
}

absl::StatusOr<ModelConfig> ParseHfConfig(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError(StrCat(kWhere, ": not a JSON object"));
  NIBBLE_ASSIGN_OR_RETURN(const Family* family, FamilyOfHf(json));
  NIBBLE_RETURN_IF_ERROR(CheckSupported(json));
  ModelConfig config;
  config.architecture = family->name;
  NIBBLE_ASSIGN_OR_RETURN(config.activation, ReadActivation(json, family->activation));
  NIBBLE_ASSIGN_OR_RETURN(config.hidden_size, Size(json, "hidden_size", kMaxHidden, nullptr));
  NIBBLE_ASSIGN_OR_RETURN(config.num_layers, Size(json, "num_hidden_layers", kMaxLayers, nullptr));
  NIBBLE_ASSIGN_OR_RETURN(config.num_heads, Size(json, "num_attention_heads", kMaxHeads, nullptr));
  // null means as many as heads; an absent key means the family's default.
  const bool own_kv_heads = family->num_kv_heads > 0 && !json.contains("num_key_value_heads");
  const std::int64_t default_kv_heads = own_kv_heads ? family->num_kv_heads : config.num_heads;
  NIBBLE_ASSIGN_OR_RETURN(config.num_kv_heads, Size(json, "num_key_value_heads", kMaxHeads, &default_kv_heads));
  NIBBLE_ASSIGN_OR_RETURN(config.ffn_size, Size(json, "intermediate_size", kMaxFfn, nullptr));
  NIBBLE_ASSIGN_OR_RETURN(config.vocab_size, Size(json, "vocab_size", kMaxVocab, nullptr));
  NIBBLE_ASSIGN_OR_RETURN(config.max_positions,
                          Size(json, "max_position_embeddings", kMaxPositions, &family->max_positions));
  NIBBLE_ASSIGN_OR_RETURN(config.sliding_window, ReadSlidingWindow(json, *family, config.num_layers));
  if (config.num_heads % config.num_kv_heads != 0) {
    return Bad("num_key_value_heads", StrCat(config.num_kv_heads), StrCat("a divisor of ", config.num_heads, " heads"));
  }
  const bool own_head_dim = family->head_dim > 0 && !json.contains("head_dim");
  if (!own_head_dim && Find(json, "head_dim") == nullptr && config.hidden_size % config.num_heads != 0) {
    return Bad("hidden_size", StrCat(config.hidden_size),
               StrCat("a multiple of ", config.num_heads, " heads, or a \"head_dim\""));
  }
  const std::int64_t default_head_dim = own_head_dim ? family->head_dim : config.hidden_size / config.num_heads;
  NIBBLE_ASSIGN_OR_RETURN(config.head_dim, Size(json, "head_dim", kMaxHeadDim, &default_head_dim));
  if (config.head_dim % 2 != 0) return Bad("head_dim", StrCat(config.head_dim), "an even number");
  NIBBLE_RETURN_IF_ERROR(ReadNorms(json, *family, config));
  config.qk_norm = family->qk_norm;
  NIBBLE_ASSIGN_OR_RETURN(config.tied_embeddings, base::GetBool(json, "tie_word_embeddings", kWhere, false));
  NIBBLE_RETURN_IF_ERROR(ReadBiases(json, *family, config));
  NIBBLE_ASSIGN_OR_RETURN(config.rope, ReadRope(json, family->rope_theta, config.max_positions));
  NIBBLE_RETURN_IF_ERROR(ReadTokenIds(json, config));
  return config;
}

Json ToHfConfig(const ModelConfig& config) {
  const Family& family = *FindFamily(config.architecture);
  Json json = Json::object();
  json["architectures"] = Json::array({family.hf_architecture});
  json["model_type"] = family.model_type;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.ffn_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab_size"] = config.vocab_size;
  json["max_position_embeddings"] = config.max_positions;
  json["hidden_act"] = config.activation == Activation::kSilu ? "silu" : "relu2";
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["tie_word_embeddings"] = config.tied_embeddings;
  if (family.attention_bias == Family::AttentionBias::kFromConfig) json["attention_bias"] = config.qkv_bias;
  if (family.mlp_bias_key) json["mlp_bias"] = config.mlp_bias;
  if (family.sliding_window > 0 || config.sliding_window > 0) {
    json["sliding_window"] = config.sliding_window > 0 ? Json(config.sliding_window) : Json(nullptr);
    json["use_sliding_window"] = config.sliding_window > 0;
    // Layers from max_window_layers on have the window. ModelConfig does not record which layers had it, because the
    // window limits the whole model (ModelConfig::context_limit). So 0 gives it to all layers.
    json["max_window_layers"] = config.sliding_window > 0 ? 0 : config.num_layers;
  }
  if (config.norms != family.norms) {
    for (const auto& [text, placement] : kNormPlacements) {
      if (config.norms == placement) json["nibble_norms"] = text;
    }
  }
  if (config.linear_norm_eps != config.rms_norm_eps) json["nibble_linear_norm_eps"] = config.linear_norm_eps;
  // transformers 4 reads the first two, 5 the third.
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = config.rope.scaling == RopeConfig::Scaling::kNone ? Json(nullptr) : RopeJson(config.rope);
  json["rope_parameters"] = RopeJson(config.rope);
  json["bos_token_id"] = config.bos_token_id.has_value() ? Json(*config.bos_token_id) : Json(nullptr);
  if (config.eos_token_ids.empty()) {
    json["eos_token_id"] = nullptr;
  } else if (config.eos_token_ids.size() == 1) {
    json["eos_token_id"] = config.eos_token_ids[0];
  } else {
    json["eos_token_id"] = config.eos_token_ids;
  }
  json["pad_token_id"] = config.pad_token_id.has_value() ? Json(*config.pad_token_id) : Json(nullptr);
  return json;
}

}  // namespace nibble::model
