#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/jobs/spec_checker.h"
#include "server/plan/adapter_plan.h"
#include "server/plan/memory_plan.h"

namespace nibble::plan {
namespace {

class Lora : public AdapterPlan {
 public:
  const jobs::Method& method() const override { return jobs::Lora(); }

  absl::Status CheckBase(const JobInputs& inputs) const override {
    if (inputs.base_format == "int8") {
      return jobs::UnimplementedField(
          "base_model",
          "is stored as int8: lora on an int8 base is not implemented yet, wanted a model in f32 or bf16");
    }
    if (inputs.base_format == "nf4") {
      return base::FieldError("base_model", "is stored as nf4, wanted a model in f32 or bf16, or method qlora");
    }
    if (inputs.base_format != "f32" && inputs.base_format != "bf16") {
      return base::FieldError("base_model",
                              base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32 or bf16"));
    }
    return CheckNoMasters(inputs);
  }

  // The evaluated model has the KV type of its base.
  kernels::DType EvaluationKvDtype(std::int64_t base_bytes) const override {
    return base_bytes == 4 ? kernels::DType::kF32 : kernels::DType::kBF16;
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
