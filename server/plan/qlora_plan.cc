#include <algorithm>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/model/tensor_table.h"
#include "server/model/working_rows.h"
#include "server/plan/memory_plan.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"
#include "server/registry/model_memory.h"

namespace nibble::plan {
namespace {

using model::Format;
using model::ModelConfig;

class QLora : public MethodPlan {
 public:
  const jobs::Method& method() const override { return jobs::QLora(); }

  absl::Status CheckBase(const JobInputs& inputs) const override {
    if (inputs.base_format != "f32" && inputs.base_format != "bf16" && inputs.base_format != "nf4") {
      return base::FieldError(
          "base_model", base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32, bf16 or nf4"));
    }
    if (inputs.base_is_masters) {
      return base::FieldError(
          "base_model", "has the master weights of a BitNet model, which run as ternary: wanted method bitnet_qat");
    }
    return absl::OkStatus();
  }

  bool trains_adapter() const override { return true; }
  ModelConfig TrainedConfig(const jobs::JobSpec&, const ModelConfig& base) const override { return base; }
  model::ArtifactInfo ServedForm(const jobs::JobSpec&) const override {
    model::ArtifactInfo served;
    served.format = Format::kInt8;
    return served;
  }

  std::int64_t TrainedParameters(const jobs::JobSpec& spec, const ModelConfig& config) const override {
    std::int64_t parameters = 0;
    for (int k = 0; k < model::kNumLinearKinds; ++k) {
      const auto kind = static_cast<model::LinearKind>(k);
      const auto& targets = spec.qlora.target_modules;
      if (std::find(targets.begin(), targets.end(), model::ShortName(kind)) == targets.end()) continue;
      parameters +=
          spec.qlora.r * (model::OutFeatures(config, kind) + model::InFeatures(config, kind)) * config.num_layers;
    }
    return parameters;
  }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& c) const override {
    // In the compute type: two norms' inputs and outputs; attention's q, k, v and output; gate, up and their product;
    // the rank-r values that each adapter keeps. In f32: one number per head.
    const std::int64_t values = 4 * c.hidden_size + 2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn_size +
                                static_cast<std::int64_t>(spec.qlora.target_modules.size()) * spec.qlora.r;
    return values * ElementBytes(spec.qlora.compute_dtype) + c.num_heads * 4 + HeadNormBytes(c);
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                         std::int64_t tokens) const override {
    const ModelSizes sizes(config);
    const std::int64_t element = ElementBytes(spec.qlora.compute_dtype);
    const std::int64_t logits = model::kLossChunk * config.vocab_size;
    TrainingBytes bytes;
    // Codes and f32 block scales; embedding and head as stored; a second copy of the head if it is multiplied in
    // another type.
    bytes.weights = sizes.linears / 2 + sizes.linears / 64 * 4 +
                    sizes.heads * sizes.embedding * std::max<std::int64_t>(base_bytes, 2);
    if (element != base_bytes) bytes.weights += sizes.embedding * element;
    bytes.adapter =
        TrainedParameters(spec, config) * 4 * 3;  // values, gradients, and the form that the evaluation reads
    // A dequantized weight; logits in f32 and rounded; gate, up and the residual stream in f32 with their gradients,
    // two of them rounded; the cached K and V of one layer.
    const std::int64_t token = 8 * config.hidden_size + (8 + 2 * element) * config.ffn_size + 8 * config.kv_size();
    bytes.workspace = sizes.largest * element + logits * (4 + element) + tokens * token;
    if (base_bytes != 4) bytes.workspace += std::min(config.vocab_size, model::kWidenedRows) * config.hidden_size * 4;
    return bytes;
  }

  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                             std::int64_t /*weights*/) const override {
    const std::int64_t trained = TrainedParameters(spec, config);
    // During conversion: the moments, and in f32 values, gradients, the form that the evaluation reads, and the copy
    // that is written. Until the end: the values.
    return {.stored_element = std::max<std::int64_t>(base_bytes, 2),
            .converting = trained * 16 + MomentBytes(spec, trained),
            .kept = trained * 4};
  }

  std::int64_t ServedEmbeddingElement(const jobs::JobSpec&, const ModelConfig& config,
                                      std::int64_t base_bytes) const override {
    return config.tied_embeddings ? 2 : std::max<std::int64_t>(base_bytes, 2);
  }

  double WeightFileBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes) const override {
    const std::int64_t float_bytes = std::max<std::int64_t>(base_bytes, 2);
    // The base in nf4, if converted from another format; the adapter, whose model shares the base's file; the int8 form
    // that is evaluated.
    const double base = base_bytes != 0 ? FileBytes(config, Format::kNf4, float_bytes) : 0;
    return base + static_cast<double>(TrainedParameters(spec, config) * 4) +
           FileBytes(config, Format::kInt8, config.tied_embeddings ? 2 : float_bytes);
  }

  registry::WorkMemory CheckpointMemory(const jobs::JobSpec&, const model::Artifact& base,
                                        std::int64_t checkpoint_bytes) const override {
    // An adapter's checkpoint consists almost only of its tensors and the optimizer's state.
    return registry::AdapterMemory(base, checkpoint_bytes);
  }

  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const CheckpointToPublish& source,
                                                          const kernels::Stream& stream) const override {
    return convert::MakeCheckpointModel(files, source.target.base, source.directory, source.target.provenance,
                                        source.target.scratch, source.target.directory, stream);
  }
};

}  // namespace

const MethodPlan& QLoraPlan() {
  static const QLora method;
  return method;
}

}  // namespace nibble::plan
