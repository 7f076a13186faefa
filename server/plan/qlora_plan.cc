#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/jobs/qlora_method.h"
#include "server/plan/adapter_plan.h"
#include "server/plan/memory_plan.h"
#include "server/registry/model_memory.h"

namespace nibble::plan {
namespace {

using model::ModelConfig;

class QLora : public AdapterPlan {
 public:
  const jobs::Method& method() const override { return jobs::QLora(); }

  absl::Status CheckBase(const jobs::JobSpec& spec, const JobInputs& inputs) const override {
    if (inputs.base_format != "f32" && inputs.base_format != "bf16" && inputs.base_format != "nf4") {
      return base::FieldError(
          "base_model", base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32, bf16 or nf4"));
    }
    if (inputs.base_format == "nf4") NIBBLE_RETURN_IF_ERROR(jobs::CheckNf4Base(spec.qlora, inputs.base_nf4));
    return CheckAnyBase(spec, inputs);
  }

  double WeightFileBytes(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes) const override {
    // The base in nf4, if converted from another format.
    model::ArtifactInfo nf4;
    nf4.format = model::Format::kNf4;
    nf4.nf4 = jobs::Nf4OptionsOf(spec.qlora);
    const double base = base_bytes != 0 ? FileBytes(config, nf4, base_bytes) : 0;
    return base + AdapterPlan::WeightFileBytes(spec, config, base_bytes);
  }

  registry::WorkMemory CheckpointMemory(const jobs::JobSpec& spec, const model::Artifact& base,
                                        std::int64_t checkpoint_bytes) const override {
    // An adapter's checkpoint consists almost only of its tensors and the optimizer's state.
    return registry::AdapterMemory(base, checkpoint_bytes, jobs::Nf4OptionsOf(spec.qlora));
  }

  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const CheckpointToPublish& source,
                                                          const kernels::Stream& stream) const override {
    return convert::MakeCheckpointModel(files, source.target.base, source.directory,
                                        jobs::Nf4OptionsOf(source.spec.qlora), source.target.provenance,
                                        source.target.scratch, source.target.directory, stream);
  }

  std::int64_t TokenBytes(const jobs::JobSpec& spec, const ModelConfig& config,
                          std::int64_t base_bytes) const override {
    if (!spec.qlora.merge_aware_int8) return AdapterPlan::TokenBytes(spec, config, base_bytes);
    return CodedAdapterTokenBytes(config, ElementBytes(spec.qlora.compute_dtype));
  }

  TrainingBytes Training(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                         std::int64_t tokens) const override {
    TrainingBytes bytes = AdapterPlan::Training(spec, config, base_bytes, tokens);
    if (!spec.qlora.merge_aware_int8) return bytes;
    const ModelSizes sizes(config);
    const std::int64_t element = ElementBytes(spec.qlora.compute_dtype);
    // Codes and block scales of the base, codes of the merged weights; the embedding in bf16 if it is the head, else in
    // f32, and the head in bf16.
    const std::int64_t embedding = config.tied_embeddings ? 2 : 4 + 2;
    bytes.weights = LinearBytes(spec, sizes, base_bytes) + sizes.linears + sizes.embedding * embedding;
    bytes.adapter = TrainedParameters(spec, config) * 4 * 2;  // values and gradients
    // A weight and its change in f32, and its codes; the head in the type of backward products; the values of the
    // largest input.
    bytes.workspace += sizes.largest * (8 + 1) + sizes.embedding * element + tokens * config.ffn_size * 4;
    return bytes;
  }

  PublishingBytes Publishing(const jobs::JobSpec& spec, const ModelConfig& config, std::int64_t base_bytes,
                             std::int64_t weights) const override {
    PublishingBytes bytes = AdapterPlan::Publishing(spec, config, base_bytes, weights);
    if (spec.qlora.merge_aware_int8) bytes.kept += weights;  // they make the record
    return bytes;
  }

 protected:
  const jobs::LoraMethod& Adapter(const jobs::JobSpec& spec) const override { return spec.qlora; }
  // Codes and f32 block scales.
  std::int64_t LinearBytes(const jobs::JobSpec& spec, const ModelSizes& sizes,
                           std::int64_t /*base_bytes*/) const override {
    return sizes.linears / 2 + sizes.linears / jobs::Nf4OptionsOf(spec.qlora).block * 4;
  }
};

}  // namespace

const MethodPlan& QLoraPlan() {
  static const QLora method;
  return method;
}

}  // namespace nibble::plan
