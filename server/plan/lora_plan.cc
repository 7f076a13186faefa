#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/plan/adapter_plan.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {
namespace {

class Lora : public AdapterPlan {
 public:
  const jobs::Method& method() const override { return jobs::Lora(); }

  absl::Status CheckBase(const jobs::JobSpec& spec, const JobInputs& inputs) const override {
    const std::string& format = inputs.base_format;
    if (format != "f32" && format != "bf16" && format != "int8") {
      return base::FieldError("base_model",
                              base::StrCat("is stored as ", format, ", wanted a model in f32, bf16 or int8",
                                           format == "nf4" ? ", or method qlora" : ""));
    }
    return CheckAnyBase(spec, inputs);
  }

  // The evaluated model has the KV type of its base.
  kernels::DType EvaluationKvDtype(std::int64_t base_bytes) const override {
    return base_bytes == 4 ? kernels::DType::kF32 : kernels::DType::kBF16;
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                         std::int64_t tokens) const override {
    TrainingBytes bytes = AdapterPlan::Training(spec, config, base_bytes, tokens);
    if (base_bytes != 1) return bytes;
    const ModelSizes sizes(config);
    // Upper bound: a head takes 6 bytes per element, in bf16 and twice in panels. A tied embedding is the head; a
    // separate one takes 4 more bytes, in f32. An int8 head takes less, even with its codes widened for backward
    // products.
    bytes.weights = LinearBytes(spec, sizes, base_bytes) + sizes.embedding * (config.tied_embeddings ? 6 : 10);
    bytes.workspace += tokens * config.ffn_size * 4;  // the values of the largest input
    return bytes;
  }

  PublishingBytes Publishing(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                             std::int64_t weights) const override {
    PublishingBytes bytes = AdapterPlan::Publishing(spec, config, base_bytes, weights);
    // The weights of training make the record; the served model has the adapter too.
    if (base_bytes == 1) bytes.kept += weights + TrainedParameters(spec, config) * 4;
    return bytes;
  }

  double WeightFileBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                         std::int64_t base_bytes) const override {
    // On an int8 base the adapter is served as it is.
    if (base_bytes == 1) return static_cast<double>(TrainedParameters(spec, config) * 4);
    return AdapterPlan::WeightFileBytes(spec, config, base_bytes);
  }

  registry::WorkMemory CheckpointMemory(const jobs::JobSpec& /*spec*/, const model::Artifact& /*base*/,
                                        std::int64_t checkpoint_bytes) const override {
    // An adapter's checkpoint consists almost only of its tensors and the optimizer's state; the base is not read as
    // floats.
    registry::WorkMemory need;
    need.weights = checkpoint_bytes;
    return need;
  }

  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const CheckpointToPublish& source,
                                                          const kernels::Stream& /*stream*/) const override {
    return convert::MakeLoraCheckpointModel(files, source.target.base, source.directory, source.target.provenance,
                                            source.target.directory);
  }

 protected:
  const jobs::LoraMethod& Adapter(const jobs::JobSpec& spec) const override { return spec.lora; }
  // As stored; an f32 base also rounded for bf16 products.
  std::int64_t LinearBytes(const jobs::JobSpec& spec, const ModelSizes& sizes, std::int64_t base_bytes) const override {
    const bool rounds = base_bytes == 4 && ElementBytes(spec.lora.compute_dtype) == 2;
    return sizes.linears * (base_bytes + (rounds ? 2 : 0));
  }
};

}  // namespace

const MethodPlan& LoraPlan() {
  static const Lora method;
  return method;
}

}  // namespace nibble::plan
