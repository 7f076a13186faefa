#include "server/convert/checkpoint_model.h"

#include <cstring>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/adapter_model.h"
#include "server/convert/convert.h"
#include "server/model/adapter.h"
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

absl::StatusOr<std::vector<std::vector<float>>> ReadValues(const std::string& checkpoint,
                                                           const std::vector<model::TensorPlan>& plan) {
  NIBBLE_ASSIGN_OR_RETURN(const auto file, model::OpenSafetensors(base::JoinPath(checkpoint, kCheckpointTensorsFile)));
  std::vector<std::vector<float>> values;
  for (const model::TensorPlan& tensor : plan) {
    const auto it = file.tensors.find(tensor.name);
    if (it == file.tensors.end() || it->second.dtype != kernels::DType::kF32 || it->second.shape != tensor.shape) {
      return absl::DataLossError(StrCat("the checkpoint's ", tensor.name, " is missing, not f32 or of another shape"));
    }
    std::vector<float>& value = values.emplace_back(it->second.bytes.size() / sizeof(float));
    std::memcpy(value.data(), it->second.bytes.data(), it->second.bytes.size());
  }
  return values;
}

}  // namespace

absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const model::Artifact& base,
                                                        const std::string& checkpoint_directory,
                                                        const base::Json& provenance, const std::string& scratch,
                                                        const std::string& target, const kernels::Stream& stream) {
  model::PeftAdapter adapter;
  NIBBLE_ASSIGN_OR_RETURN(adapter.config, ReadAdapter(files, checkpoint_directory));
  NIBBLE_ASSIGN_OR_RETURN(adapter.values,
                          ReadValues(checkpoint_directory, model::AdapterTensors(base.config(), adapter.config)));
  return MakeAdapterModel(files, base, std::move(adapter), provenance, scratch, target, stream, kMadeOf);
}

absl::StatusOr<model::ArtifactInfo> MakeTrainedCheckpointModel(
    base::FileSystem& files, const model::Artifact& base, const model::ModelConfig& config, const TrainedForm& form,
    const std::string& checkpoint_directory, const base::Json& provenance, const std::string& target) {
  std::vector<model::TensorPlan> plan;
  for (const model::TensorSpec& tensor : model::RequiredTensors(config)) {
    plan.push_back({tensor.name, kernels::DType::kF32, tensor.shape});
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto values, ReadValues(checkpoint_directory, plan));
  const std::vector<std::span<const float>> spans(values.begin(), values.end());
  return MakeTrainedModel(files, config, form, spans, base.directory(), provenance, target, kMadeOf);
}

}  // namespace nibble::convert
