#include "server/plan/job_planner.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/process_memory.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/artifact.h"
#include "server/model/artifact_writer.h"
#include "server/plan/adapter_start.h"
#include "server/plan/plan_job.h"
#include "server/registry/dataset_meta.h"
#include "server/store/job_space.h"

namespace nibble::plan {

absl::Status JobPlanner::AddData(const jobs::JobSpec& spec, JobInputs& inputs) const {
  const auto file_of = [this](const std::string& dataset) -> absl::StatusOr<DataFile> {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(dataset));
    NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, registry::FormatOf(stored));
    return DataFile{.path = stored.data_path,
                    .format = data::Name(format),
                    .sha256 = stored.sha256,
                    .tokens_directory = state_.paths.tokens(dataset)};
  };
  NIBBLE_ASSIGN_OR_RETURN(inputs.train, file_of(spec.train_dataset));
  if (!spec.eval_dataset.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(inputs.eval, file_of(spec.eval_dataset));
  }
  return absl::OkStatus();
}

absl::StatusOr<JobInputs> JobPlanner::InputsOf(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  if (trainer_path_.empty()) {
    return base::WithReason(absl::UnimplementedError("this server has no nibble-trainer beside it"), "UNIMPLEMENTED");
  }
  JobInputs inputs;
  inputs.devices = {"cpu"};
  inputs.cancel = cancel;
  NIBBLE_ASSIGN_OR_RETURN(const store::StoredModel base_model, state_.models->Get(spec.base_model));
  NIBBLE_ASSIGN_OR_RETURN(const model::ArtifactInfo info, model::ParseArtifactInfo(base_model.info));
  inputs.base_format = model::Name(info.format);
  inputs.base_nf4 = info.nf4;
  inputs.base_int8_head = info.int8_head;
  inputs.base_is_masters = info.is_masters();
  for (const char* name : model::kCompanionFiles) {
    const auto size = state_.files.Size(base::JoinPath(base_model.directory, name));
    if (size.ok()) inputs.companion_bytes += static_cast<std::int64_t>(*size);
  }
  NIBBLE_ASSIGN_OR_RETURN(registry::TextFacts facts, texts_.Facts(spec.base_model));
  inputs.config = std::move(facts.config);
  inputs.text.digest = std::move(facts.digest);
  NIBBLE_RETURN_IF_ERROR(AddData(spec, inputs));
  return inputs;
}

absl::StatusOr<JobInputs> JobPlanner::InputsWithRows(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  NIBBLE_ASSIGN_OR_RETURN(JobInputs inputs, InputsOf(spec, cancel));
  NIBBLE_ASSIGN_OR_RETURN(const auto text, texts_.Get(spec.base_model));
  inputs.text = text->assets;
  inputs.load = [this](const auto& source, const auto& cancelled) { return tokens_.GetLengths(source, cancelled); };
  inputs.memory = memory_;
  return inputs;
}

absl::StatusOr<JobPlan> JobPlanner::PlanOf(const jobs::JobSpec& spec, const JobInputs& inputs) const {
  auto plan = plan::PlanJob(spec, inputs);
  base::ReturnFreeMemory();  // lengths and orders of a large dataset
  for (const std::string& dataset : {spec.train_dataset, spec.eval_dataset}) {
    if (!dataset.empty()) state_.datasets->RemoveTokensIfDeleted(dataset);
  }
  return plan;
}

absl::Status JobPlanner::CheckWithoutRows(const jobs::JobSpec& spec) const {
  NIBBLE_ASSIGN_OR_RETURN(const JobInputs inputs, InputsOf(spec, {}));
  NIBBLE_RETURN_IF_ERROR(plan::CheckWithoutRows(spec, inputs));
  return CheckAdapterStart(state_, spec);
}

absl::StatusOr<std::vector<std::string>> JobPlanner::TokenFiles(const jobs::JobSpec& spec) const {
  // Loads no tokenizer: the token cache asks for the files of every open job.
  NIBBLE_ASSIGN_OR_RETURN(const registry::TextFacts facts, texts_.Facts(spec.base_model));
  JobInputs inputs;
  inputs.config = facts.config;
  inputs.text.digest = facts.digest;
  NIBBLE_RETURN_IF_ERROR(AddData(spec, inputs));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<data::TokenSource> sources, TokenSourcesOf(spec, inputs));
  std::vector<std::string> paths;
  paths.reserve(sources.size());
  for (const data::TokenSource& source : sources)
    paths.push_back(data::TokenFilePath(source.tokens_directory, data::TokenKey(source)));
  return paths;
}

absl::StatusOr<jobs::JobSpec> JobPlanner::Resolved(const jobs::JobSpec& spec, const JobInputs& inputs) {
  jobs::JobSpec resolved = jobs::Resolve(spec, /*job_id=*/"planned", inputs.train.format, kDefaultDevice);
  NIBBLE_RETURN_IF_ERROR(jobs::Validate(resolved));  // as CreateJob does: defaults may conflict with given fields
  return resolved;
}

absl::StatusOr<jobs::JobSpec> JobPlanner::Check(const jobs::JobSpec& spec) const {
  NIBBLE_RETURN_IF_ERROR(jobs::Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(const JobInputs inputs, InputsOf(spec, {}));
  NIBBLE_ASSIGN_OR_RETURN(jobs::JobSpec resolved, Resolved(spec, inputs));
  NIBBLE_RETURN_IF_ERROR(plan::CheckWithoutRows(resolved, inputs));
  NIBBLE_RETURN_IF_ERROR(CheckAdapterStart(state_, resolved));
  return resolved;
}

absl::StatusOr<PlannedJob> JobPlanner::Plan(const jobs::JobSpec& spec, const base::CancelToken& cancel) const {
  NIBBLE_RETURN_IF_ERROR(jobs::Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(const JobInputs inputs, InputsWithRows(spec, cancel));
  PlannedJob planned;
  NIBBLE_ASSIGN_OR_RETURN(planned.spec, Resolved(spec, inputs));
  NIBBLE_ASSIGN_OR_RETURN(planned.plan, PlanOf(planned.spec, inputs));
  planned.available_bytes = train_bytes_;
  NIBBLE_ASSIGN_OR_RETURN(planned.spare_disk_bytes,
                          store::PlannableBytes(state_.files, state_.paths, state_.min_free_bytes));
  return planned;
}

absl::StatusOr<jobs::PlannedMemory> JobPlanner::Memory(const jobs::JobSpec& spec,
                                                       const base::CancelToken& cancel) const {
  NIBBLE_ASSIGN_OR_RETURN(const JobInputs inputs, InputsWithRows(spec, cancel));
  NIBBLE_ASSIGN_OR_RETURN(const JobPlan plan, PlanOf(spec, inputs));
  std::vector<std::string> pools;
  for (const MemoryItem& item : plan.memory) pools.push_back(base::StrCat(item.pool, " ", item.bytes));
  return jobs::PlannedMemory{plan.memory_bytes(), absl::StrJoin(pools, ", "), plan.disk_bytes, plan.max_steps};
}

}  // namespace nibble::plan
