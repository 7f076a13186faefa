// The common part of the plans of methods that train adapters on a frozen base and are served in int8. Included by
// server/plan/*.cc only.
#pragma once
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/model/adapter.h"
#include "server/plan/method_plan.h"
#include "server/plan/model_sizes.h"

namespace nibble::plan {

class AdapterPlan : public MethodPlan {
 public:
  const jobs::LoraMethod* AdapterOptions(const jobs::JobSpec& spec) const override { return &Adapter(spec); }
  // target_pattern must match linears of the decoder and nothing else. Each entry of rank_pattern and alpha_pattern
  // must match a linear with an adapter, and no two entries of one field may match the same linear.
  absl::Status CheckFields(const jobs::JobSpec& spec, const model::ModelConfig& base) const override;
  model::ModelConfig TrainedConfig(const jobs::JobSpec& /*spec*/, const model::ModelConfig& base) const override {
    return base;
  }
  model::ArtifactInfo ServedForm(const jobs::JobSpec& spec) const override;

  std::int64_t TrainedParameters(const jobs::JobSpec& spec, const model::ModelConfig& config) const override;
  std::int64_t TokenBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                          std::int64_t base_bytes) const override;
  TrainingBytes Training(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                         std::int64_t tokens) const override;
  PublishingBytes Publishing(const jobs::JobSpec& spec, const model::ModelConfig& config, std::int64_t base_bytes,
                             std::int64_t weights) const override;
  std::int64_t ServedEmbeddingElement(const jobs::JobSpec& spec, const model::ModelConfig& config,
                                      std::int64_t base_bytes) const override;
  // The adapter, whose model shares the base's file, and the int8 form that is evaluated.
  double WeightFileBytes(const jobs::JobSpec& spec, const model::ModelConfig& config,
                         std::int64_t base_bytes) const override;

 protected:
  // InvalidArgument (FIELD_VIOLATION) for master weights, which cannot be served as they are, and for modules_to_save
  // that do not fit the base (model/saved_modules.h).
  absl::Status CheckAnyBase(const jobs::JobSpec& spec, const JobInputs& inputs) const;
  // The tensors that a validated spec trains, and those of them that are copies of the base's (modules_to_save).
  std::vector<model::TensorPlan> AdapterTensors(const jobs::JobSpec& spec, const model::ModelConfig& config) const;
  std::vector<model::TensorSpec> SavedTensors(const jobs::JobSpec& spec, const model::ModelConfig& config) const;
  // The method's options of adapters.
  virtual const jobs::LoraMethod& Adapter(const jobs::JobSpec& spec) const = 0;
  // Bytes of the frozen linears.
  virtual std::int64_t LinearBytes(const jobs::JobSpec& spec, const ModelSizes& sizes,
                                   std::int64_t base_bytes) const = 0;
};

}  // namespace nibble::plan
