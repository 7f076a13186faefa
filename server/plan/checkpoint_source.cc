#include "server/plan/checkpoint_source.h"

#include "server/base/status_macros.h"
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

absl::StatusOr<registry::CheckpointSource> FindCheckpoint(jobs::JobController& jobs, const std::string& name,
                                                          const std::string& tenant) {
  NIBBLE_ASSIGN_OR_RETURN(const store::CheckpointInfo found, jobs.FindCheckpoint(name));
  const std::string job_id = name.substr(0, name.find('/'));
  NIBBLE_ASSIGN_OR_RETURN(const jobs::StoredJob job, jobs.Get(job_id));
  if (!tenant.empty() && tenant != job.tenant) return jobs::NoCheckpoint(name);
  registry::CheckpointSource source = CheckpointSourceOf(found, job_id, job.spec);
  source.base_digest = job.digests.base_model;
  return source;
}

std::string EvalDatasetOf(jobs::JobController& jobs, const std::string& job_id) {
  const auto job = jobs.Get(job_id);
  if (!job.ok()) return "";
  return job->spec.eval_fraction.has_value() ? job->spec.train_dataset : job->spec.eval_dataset;
}

}  // namespace nibble::plan
