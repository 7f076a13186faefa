#include "server/plan/checkpoint_source.h"

#include "server/plan/check_job.h"
#include "server/plan/method_plan.h"

namespace nibble::plan {

registry::CheckpointSource CheckpointSourceOf(const store::CheckpointInfo& checkpoint, const std::string& job_id,
                                              const jobs::JobSpec& spec) {
  registry::CheckpointSource source{.directory = checkpoint.directory,
                                    .job_id = job_id,
                                    .step = checkpoint.step,
                                    .base_model = spec.base_model,
                                    .eval_data = jobs::EvalDataJson(spec),
                                    .masters = std::nullopt};
  if (PlanOf(spec).trains_adapter()) return source;
  source.masters = {.config_of = [spec](const model::ModelConfig& base) { return TrainedConfig(spec, base); },
                    .act_bits = static_cast<int>(spec.bitnet_qat.act_bits)};
  return source;
}

}  // namespace nibble::plan
