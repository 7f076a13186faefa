#include "server/model/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/float_convert.h"
#include "server/model/safetensors.h"
#include "server/model/saved_modules.h"

namespace nibble::model {
namespace {

using base::StrCat;
using kernels::DType;

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr char kPickledWeightsFile[] = "adapter_model.bin";

absl::Status WrongShape(const std::string& tensor, const std::string& got, const std::string& wanted) {
  return base::WithReason(absl::FailedPreconditionError(StrCat(kAdapterWeightsFile, ": tensor \"", tensor, "\" is ",
                                                               got, ", the base needs ", wanted)),
                          "ADAPTER_SHAPE", {{"tensor", tensor}, {"got", got}, {"wanted", wanted}});
}

absl::StatusOr<AdapterConfig> ReadConfig(base::FileSystem& files, const std::string& directory) {
  const std::string path = base::JoinPath(directory, kAdapterConfigFile);
  if (!files.Exists(path)) return absl::NotFoundError(StrCat(kAdapterConfigFile, " is missing"));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(path, kMaxConfigBytes));
  const auto json = base::ParseJson(text);
  if (!json.ok())
    return absl::InvalidArgumentError(StrCat(kAdapterConfigFile, ": ", base::ToStd(json.status().message())));
  NIBBLE_ASSIGN_OR_RETURN(AdapterConfig config, ParsePeftConfig(*json));
  const auto check = [](std::string_view key, double alpha) -> absl::Status {
    if (alpha <= kMaxLoraAlpha) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat(kAdapterConfigFile, ": \"", key, "\" is ", alpha, ", wanted at most ", kMaxLoraAlpha));
  };
  NIBBLE_RETURN_IF_ERROR(check("lora_alpha", config.alpha));
  for (const auto& [pattern, alpha] : config.alpha_pattern) NIBBLE_RETURN_IF_ERROR(check(pattern.text(), alpha));
  return config;
}

absl::Status UnsupportedAdapter(const std::string& message) {
  return base::WithReason(absl::UnimplementedError(message), "UNSUPPORTED_ADAPTER");
}

absl::Status CheckSavedModules(const ModelConfig& model, const AdapterConfig& config) {
  const std::string problem = SavedModulesProblem(model, config, /*int8_head=*/false);
  if (!problem.empty()) return UnsupportedAdapter(StrCat(kAdapterConfigFile, ": \"modules_to_save\" ", problem));
  if (!SavesTiedEmbedding(model, config) || config.ensure_weight_tying) return absl::OkStatus();
  return UnsupportedAdapter(
      StrCat(kAdapterConfigFile,
             ": \"modules_to_save\" has the embedding of a model whose head is its embedding, which is "
             "supported only with \"ensure_weight_tying\" true"));
}

// PEFT stores the copy of a tied embedding a second time, as the head. Removes that tensor from `tensors`.
absl::Status TakeTiedHead(std::map<std::string, SafetensorsTensor>& tensors) {
  const auto head = tensors.find(SavedName(kHeadName));
  const auto embedding = tensors.find(SavedName(kEmbeddingName));
  if (head == tensors.end() || embedding == tensors.end()) return absl::OkStatus();
  const SafetensorsTensor &a = head->second, &b = embedding->second;
  if (a.dtype != b.dtype || a.shape != b.shape || !std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin())) {
    return UnsupportedAdapter(StrCat(kAdapterWeightsFile, ": tensor \"", a.name, "\" differs from \"", b.name,
                                     "\", but \"ensure_weight_tying\" is true"));
  }
  tensors.erase(head);
  return absl::OkStatus();
}

absl::Status CheckTensor(const TensorPlan& wanted, const SafetensorsTensor& got) {
  if (got.shape != wanted.shape) return WrongShape(wanted.name, ShapeText(got.shape), ShapeText(wanted.shape));
  if (got.dtype != DType::kF32 && got.dtype != DType::kF16 && got.dtype != DType::kBF16) {
    return UnsupportedAdapter(StrCat(kAdapterWeightsFile, ": tensor \"", wanted.name, "\" is ", got.dtype_name,
                                     " (supported: F32, F16, BF16)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Widened(const SafetensorsTensor& tensor) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<float> values,
                          ToFloats(tensor.bytes, *tensor.dtype, NumElements(tensor.shape).value_or(0)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(
        StrCat(kAdapterWeightsFile, ": tensor \"", tensor.name, "\" is not finite at element ", i));
  }
  return values;
}

}  // namespace

absl::StatusOr<PeftAdapter> ReadPeftAdapter(
    base::FileSystem& files, const std::string& directory, const ModelConfig& model,
    const std::function<absl::Status(const AdapterConfig& config, std::int64_t bytes)>& admit) {
  PeftAdapter adapter;
  NIBBLE_ASSIGN_OR_RETURN(adapter.config, ReadConfig(files, directory));
  const std::string path = base::JoinPath(directory, kAdapterWeightsFile);
  if (!files.Exists(path)) {
    if (!files.Exists(base::JoinPath(directory, kPickledWeightsFile))) {
      return absl::NotFoundError(StrCat(kAdapterWeightsFile, " is missing"));
    }
    return UnsupportedAdapter(
        StrCat(kPickledWeightsFile, ": pickled weights are not supported; save the adapter as safetensors"));
  }
  NIBBLE_ASSIGN_OR_RETURN(SafetensorsFiles stored, OpenSafetensors(path));
  if (const auto digest = stored.metadata.find(kBaseDigestKey); digest != stored.metadata.end()) {
    NIBBLE_RETURN_IF_ERROR(CheckBaseDigest(digest->second, kAdapterWeightsFile));
    adapter.config.base_digest = digest->second;
  }
  if (const auto nf4 = stored.metadata.find(kBaseNf4Key); nf4 != stored.metadata.end()) {
    const auto json = base::ParseJson(nf4->second);
    const std::string place = StrCat(kAdapterWeightsFile, ", ", kBaseNf4Key);
    if (!json.ok()) return absl::InvalidArgumentError(StrCat(place, ": ", base::ToStd(json.status().message())));
    NIBBLE_ASSIGN_OR_RETURN(adapter.config.base_nf4, ParseNf4Options(*json, place.c_str()));
  }
  NIBBLE_RETURN_IF_ERROR(CheckSavedModules(model, adapter.config));
  if (SavesTiedEmbedding(model, adapter.config)) NIBBLE_RETURN_IF_ERROR(TakeTiedHead(stored.tensors));
  std::vector<SafetensorsTensor> tensors;  // in the order of AdapterTensors
  std::int64_t num_values = 0;
  for (const TensorPlan& wanted : AdapterTensors(model, adapter.config)) {
    const auto found = stored.tensors.find(wanted.name);
    if (found == stored.tensors.end()) return WrongShape(wanted.name, "missing", ShapeText(wanted.shape));
    NIBBLE_RETURN_IF_ERROR(CheckTensor(wanted, found->second));
    num_values += NumElements(wanted.shape).value_or(0);
    tensors.push_back(std::move(found->second));
    stored.tensors.erase(found);
  }
  if (!stored.tensors.empty()) {
    const SafetensorsTensor& other = stored.tensors.begin()->second;
    return WrongShape(other.name, ShapeText(other.shape), "no such tensor");
  }
  if (admit) NIBBLE_RETURN_IF_ERROR(admit(adapter.config, num_values * static_cast<std::int64_t>(sizeof(float))));
  for (const SafetensorsTensor& tensor : tensors) {
    NIBBLE_ASSIGN_OR_RETURN(adapter.values.emplace_back(), Widened(tensor));
  }
  return adapter;
}

}  // namespace nibble::model
