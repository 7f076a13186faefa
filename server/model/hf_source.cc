// Reads a directory as transformers 4 and 5 save it.
#include <algorithm>
#include <cmath>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/family.h"
#include "server/model/file_names.h"
#include "server/model/float_convert.h"
#include "server/model/hf_directory.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

// Old checkpoints store these buffers; RopeInverseFrequencies computes them.
bool IsRotaryTable(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

class HfSource : public WeightSource {
 public:
  HfSource() : WeightSource("huggingface") {}

  absl::Status Open(base::FileSystem& files, const std::string& directory) {
    NIBBLE_ASSIGN_OR_RETURN(base::Json json, ReadHfConfigJson(files, directory));
    NIBBLE_RETURN_IF_ERROR(ReadConfig(std::move(json)));
    if (!files.Exists(base::JoinPath(directory, kTokenizerFile))) {
      return base::WithReason(
          absl::NotFoundError(files.Exists(base::JoinPath(directory, "tokenizer.model"))
                                  ? "tokenizer.json is missing; tokenizer.model is not read: save a fast tokenizer"
                                  : "tokenizer.json is missing"),
          "NO_TOKENIZER");
    }
    NIBBLE_ASSIGN_OR_RETURN(files_, ReadCompanions(files, directory));
    NIBBLE_ASSIGN_OR_RETURN(stored_, OpenSafetensorsModel(files, directory));
    if (FindFamily(config_.architecture)->fused) NIBBLE_RETURN_IF_ERROR(TakeApart());
    return CheckTensors();
  }

  absl::StatusOr<TernaryValues> ReadTernary(const TensorSpec& spec) const override {
    const SafetensorsTensor& tensor = stored_.tensors.at(spec.name);
    TernaryValues values;
    if (tensor.dtype == DType::kU8) {
      auto codes = UnpackHfBitNet({reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()},
                                  spec.shape[0], spec.shape[1]);
      if (!codes.ok())
        return absl::DataLossError(StrCat("tensor \"", spec.name, "\": ", base::ToStd(codes.status().message())));
      values = {*std::move(codes), 1.0f};
    } else {
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> floats,
                              ToFloats(tensor.bytes, *tensor.dtype, NumElements(spec.shape).value_or(0)));
      auto ternary = AsTernary(floats);
      if (!ternary.has_value()) {
        return base::WithReason(absl::FailedPreconditionError(StrCat(
                                    "tensor \"", spec.name, "\" holds raw master weights, but config.json says codes ",
                                    "(quantization_mode offline): use \"online\" for masters")),
                                "RAW_MASTERS", {{"tensor", spec.name}});
      }
      values = *std::move(ternary);
    }
    NIBBLE_ASSIGN_OR_RETURN(const float scale, ReadScale(spec.name + kHfWeightScale));
    values.scale *= bitnet_->linear_class == HfLinearClass::kBitLinear ? 1.0f / scale : scale;
    // The stored scale is invalid, or its inverse or the product exceeds f32.
    if (!(values.scale > 0.0f) || !std::isfinite(values.scale)) {
      return absl::InvalidArgumentError(StrCat("tensor \"", spec.name, "\" has the scale ", values.scale, " with ",
                                               kHfWeightScale, " ", scale, ", wanted a positive number"));
    }
    return values;
  }

  absl::StatusOr<std::string> Read(const TensorSpec& spec, DType dtype) const override {
    const SafetensorsTensor& tensor = stored_.tensors.at(spec.name);
    const std::int64_t count = NumElements(tensor.shape).value_or(0);
    if (!IsScaled(spec)) return ConvertFloats(tensor.bytes, *tensor.dtype, dtype, count);
    // Scales by weight_scale only, whatever the magnitude of float codes: AutoBitLinear applies it to product and bias
    // together.
    NIBBLE_ASSIGN_OR_RETURN(std::vector<float> bias, ToFloats(tensor.bytes, *tensor.dtype, count));
    NIBBLE_ASSIGN_OR_RETURN(const float scale, ReadScale(HfScaleOfBias(spec.name)));
    for (float& value : bias) value *= scale;
    return FromFloats(bias, dtype);
  }

  std::int64_t ReadBytes(const TensorSpec& spec, DType dtype) const override {
    constexpr std::int64_t kFloatBytes = sizeof(float);
    const SafetensorsTensor& tensor = stored_.tensors.at(spec.name);
    const std::int64_t count = NumElements(spec.shape).value_or(0);
    // The codes, and the floats that they are made from.
    if (IsTernary(spec)) return tensor.dtype == DType::kU8 ? count : count * (1 + kFloatBytes);
    const bool as_stored = tensor.dtype == dtype && !IsScaled(spec);
    return count * (kernels::SizeOf(dtype) + (as_stored ? 0 : kFloatBytes));  // types are converted through f32
  }

 private:
  // Whether the linear that the tensor, a weight or a bias, belongs to stays float.
  bool StaysFloat(const TensorSpec& spec) const {
    return std::find(float_linears_.begin(), float_linears_.end(), spec.linear) != float_linears_.end();
  }
  bool IsTernary(const TensorSpec& spec) const {
    return is_ternary_ && spec.role == TensorRole::kLinear && !StaysFloat(spec);
  }
  bool IsScaled(const TensorSpec& spec) const {
    return spec.role == TensorRole::kBias && bitnet_.has_value() &&
           bitnet_->linear_class == HfLinearClass::kAutoBitLinearOffline && !StaysFloat(spec);
  }

  absl::StatusOr<float> ReadScale(const std::string& name) const {
    const SafetensorsTensor& tensor = stored_.tensors.at(name);
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<float> scale, ToFloats(tensor.bytes, *tensor.dtype, 1));
    return scale[0];
  }

  absl::Status ReadConfig(base::Json json) {
    if (json.is_object()) {
      NIBBLE_ASSIGN_OR_RETURN(bitnet_, ParseHfBitNet(json));
    }
    if (bitnet_.has_value()) {
      json.erase("quantization_config");
      is_masters_ = bitnet_->linear_class == HfLinearClass::kAutoBitLinearOnline;
      is_ternary_ = !is_masters_;
      float_linears_ = bitnet_->float_linears;
      if (bitnet_->use_rms_norm) {
        NIBBLE_ASSIGN_OR_RETURN(const ModelConfig plain, ParseHfConfig(json));
        if (plain.norms != NormPlacement::kBlock) {
          return base::WithReason(
              absl::UnimplementedError(StrCat("config.json: use_rms_norm with architecture ", plain.architecture)),
              "UNSUPPORTED_MODEL");
        }
        json["nibble_norms"] = "block_and_linear";
        json["nibble_linear_norm_eps"] = bitnet_->rms_norm_eps;
      }
    }
    NIBBLE_ASSIGN_OR_RETURN(config_, ParseHfConfig(json));
    return absl::OkStatus();
  }

  // Phi-3 stores q, k and v as rows of one weight, and gate and up as rows of another. Gives each its own name and its
  // part of the bytes.
  absl::Status TakeApart() {
    if (bitnet_.has_value()) {
      return base::WithReason(
          absl::UnimplementedError(StrCat("config.json: bitnet with architecture ", config_.architecture)),
          "UNSUPPORTED_MODEL");
    }
    const std::pair<const char*, std::vector<LinearKind>> fused[] = {
        {"self_attn.qkv_proj", {LinearKind::kQ, LinearKind::kK, LinearKind::kV}},
        {"mlp.gate_up_proj", {LinearKind::kGate, LinearKind::kUp}}};
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
      for (const auto& [module, kinds] : fused) {
        const std::string name = StrCat("model.layers.", layer, ".", module, ".weight");
        const auto it = stored_.tensors.find(name);
        if (it == stored_.tensors.end()) {
          return absl::InvalidArgumentError(StrCat("no tensor \"", name, "\", config.json needs it"));
        }
        const SafetensorsTensor whole = it->second;
        std::int64_t rows = 0;
        for (const LinearKind kind : kinds) rows += OutFeatures(config_, kind);
        const std::vector<std::int64_t> wanted = {rows, config_.hidden_size};
        if (whole.shape != wanted || !IsFloat(whole)) {
          return absl::InvalidArgumentError(StrCat("tensor \"", name, "\" is ", whole.dtype_name, " ",
                                                   ShapeText(whole.shape), ", config.json needs floats ",
                                                   ShapeText(wanted)));
        }
        const std::size_t row_bytes = whole.bytes.size() / static_cast<std::size_t>(rows);
        std::size_t begin = 0;
        for (const LinearKind kind : kinds) {
          SafetensorsTensor part = whole;
          part.name = ModulePath(layer, kind) + ".weight";
          part.shape = {OutFeatures(config_, kind), config_.hidden_size};
          part.bytes = whole.bytes.subspan(begin * row_bytes, static_cast<std::size_t>(part.shape[0]) * row_bytes);
          begin += static_cast<std::size_t>(part.shape[0]);
          if (!stored_.tensors.emplace(part.name, part).second) {
            return absl::InvalidArgumentError(StrCat("tensor \"", part.name, "\" exists besides \"", name, "\""));
          }
        }
        stored_.tensors.erase(name);
      }
    }
    return absl::OkStatus();
  }

  // Checks a linear of a ternary source: four codes per byte, or floats; and its scale.
  absl::Status CheckTernary(const TensorSpec& spec, std::map<std::string, const SafetensorsTensor*>& rest) {
    const SafetensorsTensor& tensor = *rest.at(spec.name);
    const std::vector<std::int64_t> packed = {spec.shape[0] / kHfBitNetRows, spec.shape[1]};
    const bool may_be_float = bitnet_->linear_class == HfLinearClass::kAutoBitLinearOffline;
    const bool fits = tensor.dtype == DType::kU8 ? tensor.shape == packed && spec.shape[0] % kHfBitNetRows == 0
                                                 : may_be_float && tensor.shape == spec.shape && IsFloat(tensor);
    if (!fits) {
      return absl::InvalidArgumentError(StrCat("tensor \"", spec.name, "\" is ", tensor.dtype_name, " ",
                                               ShapeText(tensor.shape), ", config.json needs U8 ", ShapeText(packed),
                                               may_be_float ? StrCat(" or float ", ShapeText(spec.shape)) : ""));
    }
    const std::string scale_name = spec.name + kHfWeightScale;
    const auto scale = rest.find(scale_name);
    if (scale == rest.end()) {
      return absl::InvalidArgumentError(StrCat("no tensor \"", scale_name, "\", config.json needs it"));
    }
    if (!IsFloat(*scale->second) || NumElements(scale->second->shape) != 1) {
      return absl::InvalidArgumentError(StrCat("tensor \"", scale_name, "\" is ", scale->second->dtype_name, " ",
                                               ShapeText(scale->second->shape), ", wanted one float"));
    }
    rest.erase(scale);
    return absl::OkStatus();
  }

  static bool IsFloat(const SafetensorsTensor& tensor) {
    return tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  }

  absl::Status CheckTensors() {
    std::map<std::string, const SafetensorsTensor*> rest;
    for (const auto& [name, tensor] : stored_.tensors) rest.emplace(name, &tensor);
    for (const TensorSpec& spec : RequiredTensors(config_)) {
      const auto it = rest.find(spec.name);
      if (it == rest.end()) {
        return absl::InvalidArgumentError(StrCat("no tensor \"", spec.name, "\", config.json needs it"));
      }
      if (IsTernary(spec)) {
        NIBBLE_RETURN_IF_ERROR(CheckTernary(spec, rest));
        rest.erase(spec.name);
        continue;
      }
      const SafetensorsTensor& tensor = *it->second;
      if (tensor.shape != spec.shape) {
        return absl::InvalidArgumentError(StrCat("tensor \"", spec.name, "\" has shape ", ShapeText(tensor.shape),
                                                 ", config.json needs ", ShapeText(spec.shape)));
      }
      if (!IsFloat(tensor)) {
        return base::WithReason(absl::UnimplementedError(StrCat("tensor \"", spec.name, "\" is ", tensor.dtype_name,
                                                                " (supported: F32, F16, BF16)")),
                                "UNSUPPORTED_MODEL");
      }
      rest.erase(it);
    }
    for (const auto& [name, tensor] : rest) {
      if (!IsRotaryTable(name) && !(config_.tied_embeddings && name == kHeadName)) {
        return base::WithReason(absl::UnimplementedError(StrCat(
                                    "tensor \"", name, "\" is unknown in this architecture with this config.json")),
                                "UNSUPPORTED_MODEL");
      }
      ignored_tensors_.push_back(name);
    }
    return absl::OkStatus();
  }

  std::optional<HfBitNet> bitnet_;
  SafetensorsFiles stored_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightSource>> OpenHfDirectory(base::FileSystem& files, const std::string& directory) {
  auto source = std::make_unique<HfSource>();
  NIBBLE_RETURN_IF_ERROR(source->Open(files, directory));
  return std::unique_ptr<WeightSource>(std::move(source));
}

}  // namespace nibble::model
