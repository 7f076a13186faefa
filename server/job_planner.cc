#include "server/job_planner.h"

#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact.h"
#include "server/plan/plan_job.h"
#include "server/rpc/dataset_proto.h"

namespace nibble {

absl::StatusOr<plan::JobInputs> JobPlanner::InputsOf(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  if (trainer_path_.empty()) {
    return base::WithReason(absl::UnimplementedError("this server has no nibble-trainer beside it"), "UNIMPLEMENTED");
  }
  plan::JobInputs inputs;
  inputs.devices = {"cpu"};
  inputs.cancel = cancel;
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, state_.models->Get(spec.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(base_model.info));
  inputs.base_format = model::Name(info.format);
  inputs.base_is_masters = info.is_masters();
  NIBBLE_ASSIGN_OR_RETURN(const auto text, texts_.Get(spec.base_model));
  inputs.config = text->config;
  inputs.text = text->assets;
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset train, state_.datasets->Get(spec.train_dataset));
  inputs.train_path = train.data_path;
  NIBBLE_ASSIGN_OR_RETURN(const data::Format train_format, rpc::FormatOf(train));
  inputs.train_format = data::Name(train_format);
  if (!spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset eval, state_.datasets->Get(spec.eval_dataset));
    inputs.eval_path = eval.data_path;
    NIBBLE_ASSIGN_OR_RETURN(const data::Format eval_format, rpc::FormatOf(eval));
    inputs.eval_format = data::Name(eval_format);
  }
  return inputs;
}

absl::StatusOr<rpc::PlannedJob> JobPlanner::Plan(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  NIBBLE_RETURN_IF_ERROR(jobs::Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(const plan::JobInputs inputs, InputsOf(spec, cancel));
  rpc::PlannedJob planned;
  planned.spec = jobs::Resolve(spec, "planned", inputs.train_format, kDefaultDevice);
  NIBBLE_RETURN_IF_ERROR(jobs::Validate(planned.spec));  // as CreateJob: what was left open may not fit what was said
  NIBBLE_ASSIGN_OR_RETURN(planned.plan, plan::PlanJob(planned.spec, inputs));
  planned.available_bytes = MemoryBytes(limits_.train_memory_bytes, base::RealFileSystem());
  return planned;
}

absl::StatusOr<jobs::PlannedMemory> JobPlanner::Memory(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  NIBBLE_ASSIGN_OR_RETURN(const plan::JobInputs inputs, InputsOf(spec, cancel));
  NIBBLE_ASSIGN_OR_RETURN(const plan::JobPlan plan, plan::PlanJob(spec, inputs));
  std::vector<std::string> pools;
  for (const plan::MemoryItem& item : plan.memory) pools.push_back(base::StrCat(item.pool, " ", item.bytes));
  return jobs::PlannedMemory{plan.memory_bytes(), absl::StrJoin(pools, ", ")};
}

}  // namespace nibble
