#include <algorithm>
#include <cstring>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/model/artifact_writer.h"
#include "server/model/safetensors.h"
#include "server/model/tensor_table.h"
#include "server/registry/model_memory.h"
#include "tests/server/trainer/full_f32_method.h"

namespace nibble::trainer {
namespace {

using jobs::JobSpec;
using model::ModelConfig;

// The method has no fields of its own.
class FullF32Spec : public jobs::Method {
 public:
  const char* name() const override { return kMethodFullF32; }
};

class FullF32 : public plan::MethodPlan {
 public:
  const jobs::Method& method() const override { return spec_; }

  absl::Status CheckBase(const jobs::JobSpec&, const plan::JobInputs& inputs) const override {
    if (inputs.base_format == "f32" || inputs.base_format == "bf16") return absl::OkStatus();
    return base::FieldError("base_model",
                            base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32 or bf16"));
  }

  ModelConfig TrainedConfig(const JobSpec&, const ModelConfig& base) const override { return base; }
  model::ArtifactInfo ServedForm(const JobSpec&) const override {
    model::ArtifactInfo served;
    served.format = model::Format::kInt8;
    return served;
  }

  std::int64_t TrainedParameters(const JobSpec&, const ModelConfig& config) const override {
    std::int64_t all = 0;
    for (const model::TensorSpec& tensor : model::RequiredTensors(config)) all += *model::NumElements(tensor.shape);
    return all;
  }
  std::int64_t TokenBytes(const JobSpec&, const ModelConfig& c, std::int64_t) const override {
    // In f32: inputs and outputs of two norms; q, k, v and attention's output; gate, up, their product; a sum per head.
    return 4 * (4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn_size + c.num_heads);
  }
  plan::TrainingBytes Training(const JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                               std::int64_t tokens) const override {
    const std::int64_t embedding = config.vocab_size * config.hidden_size;
    plan::TrainingBytes bytes;
    bytes.weights = TrainedParameters(spec, config) * 8 + embedding * 4;  // values, gradients, the head in panels
    // In f32: the gradients of head and embedding for a micro-batch, and their sum; for each token its logits and the
    // backward products of the MLP.
    bytes.workspace = 3 * embedding * 4 + tokens * (config.vocab_size + 4 * config.ffn_size) * 4;
    return bytes;
  }
  plan::PublishingBytes Publishing(const JobSpec& spec, const ModelConfig& config, std::int64_t /*base_bytes*/,
                                   std::int64_t weights) const override {
    const std::int64_t trained = TrainedParameters(spec, config);
    // While converting: the moments, in f32. All the time: the weights of training without their gradients.
    return {.stored_element = 4, .converting = trained * 8, .kept = weights - trained * 4};
  }
  std::int64_t ServedEmbeddingElement(const jobs::JobSpec&, const ModelConfig& config, std::int64_t) const override {
    return config.tied_embeddings ? 1 : 4;  // int8 if it is also the head (docs/formats.md), else f32
  }
  double WeightFileBytes(const JobSpec& spec, const ModelConfig& config, std::int64_t) const override {
    return static_cast<double>(TrainedParameters(spec, config)) * (4 + 2);  // f32; int8 with its scales, rounded up
  }

  registry::WorkMemory CheckpointMemory(const JobSpec&, const model::Artifact& base, std::int64_t) const override {
    return registry::MastersMemory(base.config());
  }
  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files,
                                                          const plan::CheckpointToPublish& source,
                                                          const kernels::Stream&) const override {
    NIBBLE_ASSIGN_OR_RETURN(const auto file,
                            model::OpenSafetensors(base::JoinPath(source.directory, convert::kCheckpointTensorsFile)));
    std::vector<std::vector<float>> values;
    for (const model::TensorSpec& tensor : model::RequiredTensors(source.target.base.config())) {
      const auto found = file.tensors.find(tensor.name);
      if (found == file.tensors.end() || found->second.dtype != kernels::DType::kF32 ||
          found->second.shape != tensor.shape) {
        return absl::DataLossError(
            base::StrCat("the checkpoint's ", tensor.name, " is missing or has another type or shape"));
      }
      std::vector<float>& value = values.emplace_back(found->second.bytes.size() / sizeof(float));
      std::memcpy(value.data(), found->second.bytes.data(), found->second.bytes.size());
    }
    const std::vector<std::span<const float>> spans(values.begin(), values.end());
    return WriteF32Model(files, source.target.base.config(), spans, source.target.base.directory(),
                         source.target.provenance, source.target.directory, "checkpoint");
  }

 private:
  const FullF32Spec spec_;
};

}  // namespace

const plan::MethodPlan& FullF32Plan() {
  static const FullF32 method;
  return method;
}

absl::StatusOr<model::ArtifactInfo> WriteF32Model(base::FileSystem& files, const ModelConfig& config,
                                                  std::span<const std::span<const float>> values,
                                                  const std::string& companions, const base::Json& provenance,
                                                  const std::string& target, const char* made_of) {
  const std::vector<model::TensorSpec> tensors = model::RequiredTensors(config);
  std::vector<model::TensorPlan> plan;
  for (const model::TensorSpec& tensor : tensors) plan.push_back({tensor.name, kernels::DType::kF32, tensor.shape});
  NIBBLE_ASSIGN_OR_RETURN(const auto writer, model::ArtifactWriter::Create(files, target, std::move(plan)));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto* bytes = reinterpret_cast<const char*>(values[i].data());
    NIBBLE_RETURN_IF_ERROR(writer->tensors().Put(tensors[i].name, {bytes, values[i].size_bytes()}));
  }
  NIBBLE_RETURN_IF_ERROR(writer->CopyCompanions(companions));
  model::ArtifactInfo info;
  info.format = model::Format::kF32;
  info.kv_dtype = kernels::DType::kF32;
  info.source = made_of;
  info.provenance = provenance;
  return writer->Finish(config, std::move(info));
}

}  // namespace nibble::trainer
