#include "server/convert/hf_form.h"

#include <vector>

#include "kernels/formats/ternary.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/float_convert.h"
#include "server/model/layout.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_writer.h"

namespace nibble::convert {
namespace {

using base::StrCat;
using kernels::DType;
using model::Format;
using model::NormPlacement;
using model::TensorRole;
using model::TensorSpec;

absl::Status NoPlace(const model::ModelConfig& config, std::string_view what) {
  return base::WithReason(
      absl::UnimplementedError(StrCat("transformers' ", config.architecture, " has no place for ", what)),
      "UNSUPPORTED_MODEL");
}

// The linears of a ternary model: bytes as transformers packs them, and its weight_scale.
absl::Status PutTernary(const model::Artifact& source, const TensorSpec& spec, bool divides,
                        model::SafetensorsWriter& writer) {
  const std::int64_t n = spec.shape[0];
  const std::int64_t k = spec.shape[1];
  NIBBLE_ASSIGN_OR_RETURN(const model::TensorView rows, source.Tensor(spec.name));
  std::vector<std::int8_t> codes(static_cast<std::size_t>(n * k));
  if (!kernels::TernaryRowsToCodes(reinterpret_cast<const std::uint8_t*>(rows.bytes.data()), n, k, codes.data())) {
    return absl::DataLossError(StrCat(spec.name, ": holds a code that is none of -1, 0, 1"));
  }
  const auto packed = model::PackHfBitNet(codes, n, k);
  if (!packed.ok()) return absl::InvalidArgumentError(StrCat(spec.name, ": ", base::ToStd(packed.status().message())));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> scale, source.FloatTensor(spec.name + model::kTernaryScaleSuffix));
  const float written = divides ? 1.0f / scale[0] : scale[0];
  NIBBLE_RETURN_IF_ERROR(writer.Put(spec.name, *packed));
  return writer.Put(spec.name + model::kHfWeightScale, {reinterpret_cast<const char*>(&written), sizeof written});
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
    form.bitnet->linear_class = source.info().format != Format::kTernary ? model::HfLinearClass::kAutoBitLinearOnline
                                : bitnet_class == HfBitNetClass::kAutoBitLinear
                                    ? model::HfLinearClass::kAutoBitLinearOffline
                                    : model::HfLinearClass::kBitLinear;
  }
  model::ModelConfig& config = form.config;
  if (config.norms == NormPlacement::kLinear || config.norms == NormPlacement::kBlockAndLinear) {
    if (!form.bitnet.has_value()) return NoPlace(config, "norms before every linear, unless it is a BitNet model");
    form.bitnet->use_rms_norm = true;
    form.bitnet->rms_norm_eps = config.linear_norm_eps;
    config.norms = NormPlacement::kBlock;
    config.linear_norm_eps = config.rms_norm_eps;
  }
  if (config.architecture == "phi3")
    config.architecture = "mistral";  // the same but for weights that are fused in files
  // Sub-norms are BitNet's; everything else of it is a Llama with another activation.
  const bool has_sub_norms = config.norms == NormPlacement::kBlockAndSub;
  if (has_sub_norms && config.architecture != "bitnet") {
    if (config.mlp_bias || config.qk_norm || config.sliding_window > 0 || config.qkv_bias != config.o_bias) {
      return NoPlace(config, "norms before o_proj and down_proj");
    }
    config.architecture = "bitnet";
  } else if (!has_sub_norms && config.architecture == "bitnet") {
    config.architecture = "llama";
  }
  if (has_sub_norms && config.q_size() != config.hidden_size)
    return NoPlace(config, "heads that are not hidden_size wide together");
  return form;
}

base::Json HfConfigOf(const model::Artifact& source, const HfForm& form) {
  base::Json json = model::ToHfConfig(form.config);
  const DType dtype = source.info().format == Format::kTernary ? source.info().bitnet->head_dtype
                      : source.info().format == Format::kF32   ? DType::kF32
                                                               : DType::kBF16;
  // transformers 4 reads the first, 5 the second.
  json["torch_dtype"] = dtype == DType::kF32 ? "float32" : "bfloat16";
  json["dtype"] = json["torch_dtype"];
  if (form.bitnet.has_value()) json["quantization_config"] = model::ToJson(*form.bitnet);
  return json;
}

absl::Status WriteHfTensors(base::FileSystem& files, const model::Artifact& source, const HfForm& form,
                            const std::string& path) {
  // What the form has and the source has not: norms of ones.
  std::vector<TensorSpec> specs = model::RequiredTensors(source.config());
  const auto is_stored = [&](const TensorSpec& spec) { return source.tensors().contains(spec.name); };
  for (TensorSpec& spec : model::RequiredTensors(form.config)) {
    if (spec.role == TensorRole::kNorm && !is_stored(spec)) specs.push_back(std::move(spec));
  }
  const bool ternary = source.info().format == Format::kTernary;
  std::vector<model::TensorPlan> plan;
  for (const TensorSpec& spec : specs) {
    if (ternary && spec.role == TensorRole::kLinear) {
      plan.push_back({spec.name, DType::kU8, {spec.shape[0] / model::kHfBitNetRows, spec.shape[1]}});
      plan.push_back({spec.name + model::kHfWeightScale, DType::kF32, {1}});
      continue;
    }
    DType dtype = DType::kF32;
    if (is_stored(spec)) {
      NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source.Tensor(spec.name));
      dtype = view.dtype;
    }
    plan.push_back({spec.name, dtype, spec.shape});
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto writer,
                          model::SafetensorsWriter::Create(files, path, std::move(plan), {{"format", "pt"}}));
  model::SortForWriter(*writer, specs);
  for (const TensorSpec& spec : specs) {
    if (!is_stored(spec)) {
      const std::vector<float> ones(static_cast<std::size_t>(model::NumElements(spec.shape).value_or(0)), 1.0f);
      NIBBLE_RETURN_IF_ERROR(writer->Put(spec.name, model::FromFloats(ones, DType::kF32)));
    } else if (ternary && spec.role == TensorRole::kLinear) {
      NIBBLE_RETURN_IF_ERROR(
          PutTernary(source, spec, form.bitnet->linear_class == model::HfLinearClass::kBitLinear, *writer));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(const model::TensorView view, source.Tensor(spec.name));
      NIBBLE_RETURN_IF_ERROR(
          writer->Put(spec.name, {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}));
    }
  }
  return writer->Finish();
}

}  // namespace nibble::convert
