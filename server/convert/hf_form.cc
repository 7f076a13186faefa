#include "server/convert/hf_form.h"

#include <cmath>
#include <set>
#include <vector>

#include "kernels/formats/ternary.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/hf_shards.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_writer.h"
#include "server/model/stored_tensors.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using kernels::DType;
using model::Format;
using model::NormPlacement;
using model::TensorRole;
using model::TensorSpec;

absl::Status CannotRepresent(const model::ModelConfig& config, std::string_view what) {
  return base::WithReason(
      absl::UnimplementedError(StrCat("transformers' ", config.architecture, " cannot represent ", what)),
      "UNSUPPORTED_MODEL");
}

// transformers always has a norm before each block; a model with a norm before every linear may have none there. A
// block norm of weight c and then a linear's norm of weight h map a row x to
//   y = c x / sqrt(mean(x^2) + eps), z = h y / sqrt(mean(y^2) + eps).
// With c^2 = eps / (4^k - 1) and h = 2^k g this is z = g x / sqrt(mean(x^2) + (1 - 4^-k) eps). At k = 12 it equals the
// norm of weight g alone within 2^-25 for every row, less than f32 resolves. h equals g except for its exponent.
constexpr float kBehindBlockNorm = 4096.0f;  // 2^k

float BlockNormOf(double eps) {
  return static_cast<float>(std::sqrt(eps / (double{kBehindBlockNorm} * double{kBehindBlockNorm} - 1.0)));
}

// Norms before linears that follow a block norm in transformers: all except those of o_proj and down_proj.
std::set<std::string> NormsBehindBlockNorms(const model::ModelConfig& config) {
  std::set<std::string> names;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const auto kind : {model::LinearKind::kQ, model::LinearKind::kK, model::LinearKind::kV,
                            model::LinearKind::kGate, model::LinearKind::kUp}) {
      names.insert(model::NormName(layer, model::NormBefore(kind)));
    }
  }
  return names;
}

// Writes a linear of a ternary model: bytes as transformers packs them, and weight_scale. `divides`: the linear class
// divides by weight_scale instead of multiplying by it, so the inverse of the scale is written.
absl::Status PutTernary(const model::Artifact& source, const TensorSpec& spec, bool divides,
                        model::SafetensorsWriter& writer) {
  const std::int64_t n = spec.shape[0];
  const std::int64_t k = spec.shape[1];
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView rows, source.Tensor(spec.name));
  std::vector<std::int8_t> codes(static_cast<std::size_t>(n * k));
  if (!kernels::TernaryRowsToCodes(reinterpret_cast<const std::uint8_t*>(rows.bytes.data()), n, k, codes.data())) {
    return absl::DataLossError(StrCat(spec.name, ": holds a code other than -1, 0 and 1"));
  }
  const auto packed = model::PackHfBitNet(codes, n, k);
  if (!packed.ok()) return base::FieldError("format", StrCat(spec.name, ": ", base::ToStd(packed.status().message())));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> scale, source.FloatTensor(spec.name + model::kTernaryScaleSuffix));
  const float written = divides ? 1.0f / scale[0] : scale[0];
  NIBBLE_RETURN_IF_ERROR(writer.Put(spec.name, *packed));
  return writer.Put(spec.name + model::kHfWeightScale, {reinterpret_cast<const char*>(&written), sizeof written});
}

// AutoBitLinear multiplies its bias by weight_scale too, so the bias is written divided by it. The quotient, rounded
// once, times the scale is within an ulp of the bias.
absl::Status PutBiasOfScaled(const model::Artifact& source, const TensorSpec& spec, model::SafetensorsWriter& writer) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<float> bias, source.FloatTensor(spec.name));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> scale, source.FloatTensor(model::HfScaleOfBias(spec.name)));
  for (float& value : bias) {
    const float written = value / scale[0];
    if (!std::isfinite(written)) {
      return base::WithReason(absl::UnimplementedError(StrCat(spec.name, ": ", value, " / ", scale[0],
                                                              ", stored by autobitlinear, exceeds f32: use bitlinear")),
                              "UNSUPPORTED_MODEL");
    }
    value = written;
  }
  return writer.Put(spec.name, model::FromFloats(bias, DType::kF32));
}

// The quantization_config of an int8 model for compressed-tensors 0.20 (quantization/quant_config.py, quant_args.py):
// symmetric codes with a per-row scale, activations quantized dynamically per token, a float head.
base::Json CompressedTensorsConfig() {
  const auto int8 = [](const char* strategy, bool dynamic) {
    return base::Json{{"num_bits", 8},        {"type", "int"},         {"symmetric", true},
                      {"strategy", strategy}, {"group_size", nullptr}, {"dynamic", dynamic}};
  };
  base::Json group = base::Json::object();
  group["targets"] = base::Json::array({"Linear"});
  group["weights"] = int8("channel", false);
  group["input_activations"] = int8("token", true);
  group["output_activations"] = nullptr;
  base::Json json = base::Json::object();
  json["quant_method"] = "compressed-tensors";
  json["format"] = "int-quantized";
  json["quantization_status"] = "compressed";
  json["config_groups"] = base::Json::object();
  json["config_groups"]["group_0"] = std::move(group);
  json["ignore"] = base::Json::array({"lm_head"});
  json["kv_cache_scheme"] = nullptr;
  return json;
}

// True for autobitlinear, offline: transformers 5 keeps weights in the file's types
// (BitNetHfQuantizer.serialized_names), and F.linear does not mix types, so all are f32, as the norms are.
bool HasOneType(const HfForm& form) {
  return form.bitnet.has_value() && form.bitnet->linear_class == model::HfLinearClass::kAutoBitLinearOffline;
}

// transformers' dtype of a model: the type of its float weights; for an int8 model, of its embedding.
DType FloatTypeOf(const model::Artifact& source, const HfForm& form) {
  switch (source.info().format) {
    case Format::kTernary: return HasOneType(form) ? DType::kF32 : source.info().bitnet->head_dtype;
    case Format::kF32: return DType::kF32;
    case Format::kInt8: return source.tensors().at(model::kEmbeddingName).dtype;
    default: return DType::kBF16;
  }
}

// Writes a tensor with its stored bytes.
absl::Status PutStored(const model::Artifact& source, const std::string& name, model::SafetensorsWriter& writer) {
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source.Tensor(name));
  return writer.Put(name, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()});
}

}  // namespace

absl::StatusOr<HfForm> HfFormOf(const model::Artifact& source, HfBitNetClass bitnet_class) {
  HfForm form = {source.config(), std::nullopt};
  if (source.info().bitnet.has_value()) {
    if (source.info().bitnet->act_bits != 8) {
      return base::WithReason(
          absl::UnimplementedError(
              StrCat("transformers' bitnet has activations of 8 bits, these have ", source.info().bitnet->act_bits)),
          "UNSUPPORTED_MODEL");
    }
    form.bitnet.emplace();
    form.bitnet->float_linears = source.info().bitnet->float_linears;
    form.bitnet->linear_class = source.info().format != Format::kTernary ? model::HfLinearClass::kAutoBitLinearOnline
                                : bitnet_class == HfBitNetClass::kAutoBitLinear
                                    ? model::HfLinearClass::kAutoBitLinearOffline
                                    : model::HfLinearClass::kBitLinear;
  }
  model::ModelConfig& config = form.config;
  if (config.norms == NormPlacement::kLinear || config.norms == NormPlacement::kBlockAndLinear) {
    if (!form.bitnet.has_value())
      return CannotRepresent(config, "norms before every linear, unless it is a BitNet model");
    if (config.norms == NormPlacement::kLinear && config.linear_norm_eps != config.rms_norm_eps) {
      return CannotRepresent(config, "norms only before linears, with another eps than the last norm's");
    }
    if (!form.bitnet->float_linears.empty()) {
      return CannotRepresent(config, "norms before linears that stay float (modules_to_not_convert)");
    }
    form.bitnet->use_rms_norm = true;
    form.bitnet->rms_norm_eps = config.linear_norm_eps;
    config.norms = NormPlacement::kBlock;
    config.linear_norm_eps = config.rms_norm_eps;
  }
  // phi3 is the same as mistral, except that phi3's files have fused weights.
  if (config.architecture == "phi3") config.architecture = "mistral";
  // Only BitNet has sub-norms; without them it is a Llama with another activation.
  const bool has_sub_norms = config.norms == NormPlacement::kBlockAndSub;
  if (has_sub_norms && config.architecture != "bitnet") {
    if (config.mlp_bias || config.qk_norm || config.sliding_window > 0 || config.qkv_bias != config.o_bias) {
      return CannotRepresent(config, "norms before o_proj and down_proj");
    }
    config.architecture = "bitnet";
  } else if (!has_sub_norms && config.architecture == "bitnet") {
    config.architecture = "llama";
  }
  if (has_sub_norms && config.q_size() != config.hidden_size)
    return CannotRepresent(config, "heads whose total width is not hidden_size");
  return form;
}

base::Json HfConfigOf(const model::Artifact& source, const HfForm& form) {
  base::Json json = model::ToHfConfig(form.config);
  // transformers 4 reads the first, 5 the second.
  json["torch_dtype"] = FloatTypeOf(source, form) == DType::kF32 ? "float32" : "bfloat16";
  json["dtype"] = json["torch_dtype"];
  if (form.bitnet.has_value()) json["quantization_config"] = model::ToJson(*form.bitnet);
  if (source.info().format == Format::kInt8) json["quantization_config"] = CompressedTensorsConfig();
  return json;
}

absl::Status WriteHfTensors(base::FileSystem& files, const model::Artifact& source, const HfForm& form,
                            const std::string& directory, std::uint64_t max_shard_bytes) {
  // Adds the norms that only the form has: those before blocks. In masters they are ones, so that training can
  // continue.
  const bool has_linear_norms_alone =
      source.info().format == Format::kTernary && source.config().norms == NormPlacement::kLinear;
  const float block_norm = has_linear_norms_alone ? BlockNormOf(source.config().linear_norm_eps) : 1.0f;
  const std::set<std::string> behind =
      has_linear_norms_alone ? NormsBehindBlockNorms(source.config()) : std::set<std::string>();
  std::vector<TensorSpec> specs = model::RequiredTensors(source.config());
  const auto is_stored = [&](const TensorSpec& spec) { return source.tensors().contains(spec.name); };
  const auto is_quantized = [&](const TensorSpec& spec) {
    return model::IsQuantized(spec, source.config(), source.info());
  };
  for (TensorSpec& spec : model::RequiredTensors(form.config)) {
    if (spec.role == TensorRole::kNorm && !is_stored(spec)) specs.push_back(std::move(spec));
  }
  const Format format = source.info().format;
  const bool has_one_type = HasOneType(form);
  std::vector<HfWeight> weights;
  for (TensorSpec& spec : specs) {
    HfWeight& weight = weights.emplace_back();
    weight.spec = std::move(spec);
    const std::string& name = weight.spec.name;
    const std::vector<std::int64_t>& shape = weight.spec.shape;
    if (format == Format::kTernary && is_quantized(weight.spec)) {
      weight.tensors = {{name, DType::kU8, {shape[0] / model::kHfBitNetRows, shape[1]}},
                        {name + model::kHfWeightScale, DType::kF32, {1}}};
    } else if (format == Format::kInt8 && weight.spec.role == TensorRole::kLinear) {
      weight.tensors = {{name, DType::kI8, shape}, {name + model::kInt8ScaleSuffix, DType::kF32, {shape[0], 1}}};
    } else {
      const bool as_stored = is_stored(weight.spec) && !has_one_type;
      weight.tensors = {{name, as_stored ? source.tensors().at(name).dtype : DType::kF32, shape}};
    }
  }
  return WriteHfShards(files, directory, weights, max_shard_bytes,
                       [&](const TensorSpec& spec, model::SafetensorsWriter& writer) -> absl::Status {
                         if (!is_stored(spec)) {
                           const std::vector<float> norm(
                               static_cast<std::size_t>(model::NumElements(spec.shape).value_or(0)), block_norm);
                           return writer.Put(spec.name, model::FromFloats(norm, DType::kF32));
                         }
                         if (behind.contains(spec.name)) {
                           NIBBLE_ASSIGN_OR_RETURN(std::vector<float> norm, source.FloatTensor(spec.name));
                           for (float& weight : norm) weight *= kBehindBlockNorm;
                           return writer.Put(spec.name, model::FromFloats(norm, DType::kF32));
                         }
                         if (format == Format::kTernary && is_quantized(spec)) {
                           return PutTernary(source, spec,
                                             form.bitnet->linear_class == model::HfLinearClass::kBitLinear, writer);
                         }
                         if (has_one_type) {
                           if (spec.role == TensorRole::kBias && !source.info().bitnet->StaysFloat(*spec.linear)) {
                             return PutBiasOfScaled(source, spec, writer);
                           }
                           NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> values, source.FloatTensor(spec.name));
                           return writer.Put(spec.name, model::FromFloats(values, DType::kF32));
                         }
                         NIBBLE_RETURN_IF_ERROR(PutStored(source, spec.name, writer));
                         if (format != Format::kInt8 || spec.role != TensorRole::kLinear) return absl::OkStatus();
                         return PutStored(source, spec.name + model::kInt8ScaleSuffix, writer);
                       });
}

}  // namespace nibble::convert
