#include "server/convert/checkpoint_model.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/convert/convert.h"
#include "server/model/adapter.h"
#include "server/model/peft_adapter.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"

namespace nibble::convert {

using base::StrCat;

namespace {

constexpr std::uint64_t kMaxConfigBytes = 1 << 20;
constexpr char kMadeOf[] = "checkpoint";  // ArtifactInfo::source

absl::StatusOr<model::AdapterConfig> ReadAdapter(base::FileSystem& files, const std::string& checkpoint) {
  const auto text = files.Read(base::JoinPath(checkpoint, model::kAdapterConfigFile), kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return base::WithReason(absl::FailedPreconditionError("the checkpoint has no adapter to serve"), "NOT_SERVABLE");
  }
  NIBBLE_RETURN_IF_ERROR(text.status());
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(*text));
  return model::ParsePeftConfig(json);
}

// The elements of each tensor of the plan, in `file`.
absl::StatusOr<std::vector<std::span<const std::byte>>> FindValues(const model::SafetensorsFiles& file,
                                                                   const std::vector<model::TensorPlan>& plan) {
  std::vector<std::span<const std::byte>> values;
  for (const model::TensorPlan& tensor : plan) {
    const auto it = file.tensors.find(tensor.name);
    if (it == file.tensors.end() || it->second.dtype != tensor.dtype || it->second.shape != tensor.shape) {
      return absl::DataLossError(StrCat("the checkpoint's ", tensor.name, " is missing, not ",
                                        kernels::Name(tensor.dtype), " or of another shape"));
    }
    values.push_back(it->second.bytes);
  }
  return values;
}

absl::StatusOr<model::SafetensorsFiles> OpenCheckpoint(const std::string& directory) {
  return model::OpenSafetensors(base::JoinPath(directory, kCheckpointTensorsFile));
}

// The adapter's options, and its values in the order of AdapterTensors.
absl::StatusOr<model::PeftAdapter> ReadCheckpointAdapter(base::FileSystem& files, const model::ModelConfig& config,
                                                         const std::string& directory) {
  model::PeftAdapter adapter;
  NIBBLE_ASSIGN_OR_RETURN(adapter.config, ReadAdapter(files, directory));
  NIBBLE_ASSIGN_OR_RETURN(const model::SafetensorsFiles file, OpenCheckpoint(directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto found, FindValues(file, model::AdapterTensors(config, adapter.config)));
  for (const std::span<const std::byte> bytes : found) {
    std::vector<float>& value = adapter.values.emplace_back(bytes.size() / sizeof(float));
    if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
  }
  return adapter;
}

}  // namespace

absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                        const std::string& checkpoint_directory,
                                                        const model::Nf4Options& nf4, const base::Json& provenance,
                                                        const std::string& scratch, const std::string& target,
                                                        const kernels::Stream& stream) {
  NIBBLE_ASSIGN_OR_RETURN(model::PeftAdapter adapter,
                          ReadCheckpointAdapter(files, base.config(), checkpoint_directory));
  adapter.config.base_nf4 = nf4;
  return MakeAdapterModel(files, base, std::move(adapter), provenance, scratch, target, stream, kMadeOf);
}

absl::StatusOr<model::ArtifactInfo> MakeLoraCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                            const std::string& checkpoint_directory,
                                                            const base::Json& provenance, const std::string& target) {
  NIBBLE_ASSIGN_OR_RETURN(const model::PeftAdapter adapter,
                          ReadCheckpointAdapter(files, base.config(), checkpoint_directory));
  return MakeLoraModel(files, base, adapter.config, adapter.values, provenance, target, kMadeOf);
}

absl::StatusOr<model::ArtifactInfo> MakeTrainedCheckpointModel(
    base::FileSystem& files, const model::Artifact& base, const model::ModelConfig& config, const TrainedForm& form,
    const std::string& checkpoint_directory, const base::Json& provenance, const std::string& target) {
  const std::vector<model::TensorSpec> specs = model::RequiredTensors(config);
  std::vector<model::TensorPlan> plan;  // of the tensors, then of the scales that they have
  std::vector<std::size_t> with_scales;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const bool int8 = form.dtype == kernels::DType::kI8;
    const bool codes = int8 && specs[i].role == model::TensorRole::kLinear;
    plan.push_back({specs[i].name, int8 && !codes ? kernels::DType::kF32 : form.dtype, specs[i].shape});
    if (codes) with_scales.push_back(i);
  }
  for (const std::size_t i : with_scales) {
    plan.push_back({specs[i].name + kCheckpointScales, kernels::DType::kF32, {specs[i].shape[0]}});
  }
  NIBBLE_ASSIGN_OR_RETURN(const model::SafetensorsFiles file, OpenCheckpoint(checkpoint_directory));
  NIBBLE_ASSIGN_OR_RETURN(const auto found, FindValues(file, plan));
  std::vector<TrainedTensor> tensors;
  for (std::size_t i = 0; i < specs.size(); ++i) tensors.push_back({found[i]});
  std::vector<std::vector<float>> scales;  // copies, because the file does not align them
  for (std::size_t k = 0; k < with_scales.size(); ++k) {
    const std::span<const std::byte> bytes = found[specs.size() + k];
    std::memcpy(scales.emplace_back(bytes.size() / sizeof(float)).data(), bytes.data(), bytes.size());
    tensors[with_scales[k]].scales = scales.back();
  }
  return MakeTrainedModel(files, config, form, tensors, base.directory(), provenance, target, kMadeOf);
}

}  // namespace nibble::convert
