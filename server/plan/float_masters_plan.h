// The common part of the plans of methods that train all weights of a float model and are served in int8. Included by
// server/plan/*.cc only.
#pragma once
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/plan/memory_plan.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"
#include "server/registry/model_memory.h"

namespace nibble::plan {

class FloatMastersPlan : public MethodPlan {
 public:
  absl::Status CheckBase(const jobs::JobSpec&, const JobInputs& inputs) const override {
    if (inputs.base_format != "f32" && inputs.base_format != "bf16") {
      return base::FieldError("base_model",
                              base::StrCat("is stored as ", inputs.base_format, ", wanted a model in f32 or bf16"));
    }
    if (inputs.base_is_masters) {
      return base::FieldError(
          "base_model", "has the master weights of a BitNet model, which run as ternary: wanted method bitnet_qat");
    }
    return absl::OkStatus();
  }

  model::ModelConfig TrainedConfig(const jobs::JobSpec&, const model::ModelConfig& base) const override { return base; }
  model::ArtifactInfo ServedForm(const jobs::JobSpec&) const override {
    model::ArtifactInfo served;
    served.format = model::Format::kInt8;
    return served;
  }
  std::int64_t TrainedParameters(const jobs::JobSpec&, const model::ModelConfig& config) const override {
    return ModelSizes(config).all;
  }
  std::int64_t CheckpointValueBytes(const jobs::JobSpec& spec, const model::ModelConfig& config) const override {
    return TrainedParameters(spec, config) * TrainedElement(spec);
  }
  // The embedding of the int8 form is bf16 if it is also the head, else as trained.
  std::int64_t ServedEmbeddingElement(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                      std::int64_t) const override {
    return config.tied_embeddings ? 2 : TrainedElement(spec);
  }
  double WeightFileBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                         std::int64_t base_bytes) const override {
    const bool bf16 = TrainedElement(spec) == 2;
    return FileBytes(config, bf16 ? model::Format::kBF16 : model::Format::kF32, TrainedElement(spec)) +
           FileBytes(config, model::Format::kInt8, ServedEmbeddingElement(spec, config, base_bytes));
  }
  registry::WorkMemory CheckpointMemory(const jobs::JobSpec&, const model::Artifact& base,
                                        std::int64_t /*checkpoint_bytes*/) const override {
    return registry::MastersMemory(base.config());
  }
  absl::StatusOr<model::ArtifactInfo> MakeCheckpointModel(base::FileSystem& files, const CheckpointToPublish& source,
                                                          const kernels::Stream& /*stream*/) const override {
    const model::Artifact& base = source.target.base;
    return convert::MakeTrainedCheckpointModel(files, base, base.config(), Form(source.spec, base), source.directory,
                                               source.target.provenance, source.target.directory);
  }

 protected:
  // Bytes of an element of the trained weights.
  virtual std::int64_t TrainedElement(const jobs::JobSpec& /*spec*/) const { return 4; }
  // The form of the model that the job writes.
  virtual convert::TrainedForm Form(const jobs::JobSpec& spec, const model::Artifact& base) const = 0;
};

}  // namespace nibble::plan
