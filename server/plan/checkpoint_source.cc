#include "server/plan/checkpoint_source.h"

#include "server/plan/method_plan.h"

namespace nibble::plan {

registry::CheckpointSource CheckpointSourceOf(const store::CheckpointInfo& checkpoint, const std::string& job_id,
                                              const jobs::JobSpec& spec) {
  const MethodPlan& method = PlanOf(spec);
  return {.directory = checkpoint.directory,
          .job_id = job_id,
          .step = checkpoint.step,
          .base_model = spec.base_model,
          .eval_data = jobs::EvalDataJson(spec),
          .memory = [&method, spec](const model::Artifact& base,
                                    std::int64_t bytes) { return method.CheckpointMemory(spec, base, bytes); },
          .make =
              [&method, spec, directory = checkpoint.directory](
                  base::FileSystem& files, const registry::CheckpointTarget& target, const kernels::Stream& stream) {
                return method.MakeCheckpointModel(files, {spec, directory, target}, stream);
              }};
}

}  // namespace nibble::plan
