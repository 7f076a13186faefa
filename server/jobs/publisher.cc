#include "server/jobs/publisher.h"

#include <utility>

#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/journal.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// A retry cannot help against these.
bool IsPermanent(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsDataLoss(status);
}

absl::StatusOr<store::StoredModel> MakeModel(store::StateDirectory& state, const StoredJob& job) {
  const std::string& name = job.spec.output_model;
  const std::string output = base::JoinPath(state.paths.attempt(job.id, job.attempt), store::kOutputDirectory);
  NIBBLE_RETURN_IF_ERROR(state.models->Publish(name, job.id, output, job.output_digest, job.tenant));
  auto model = state.models->Get(name);
  if (absl::IsNotFound(model.status())) {
    return absl::DataLossError(StrCat("the model \"", name, "\" was deleted right after it was published"));
  }
  return model;
}

Json ModelFields(const store::StoredModel& model) {
  Json fields = Json::object();
  fields["model"] = model.name;
  if (model.info.is_object()) {
    for (const auto& [key, name] : {std::pair("format", "format"), std::pair("weights_digest", "digest")}) {
      const auto it = model.info.find(key);
      if (it != model.info.end()) fields[name] = *it;
    }
  }
  fields["bytes"] = model.bytes;
  return fields;
}

}  // namespace

absl::Status Publisher::Publish(const StoredJob& job) {
  const std::string& name = job.spec.output_model;
  const absl::StatusOr<store::StoredModel> model = MakeModel(state_, job);
  if (!model.ok() && !IsPermanent(model.status())) return model.status();

  std::vector<NewEvent> events;
  if (model.ok()) {
    events.push_back({job.attempt, std::nullopt, clock_.Now(), "model", ModelFields(*model)});
  } else {
    base::LogError("cannot publish the output of a job",
                   {{"job", job.id}, {"why", std::string(model.status().message())}});
    Json fields = Json::object();
    fields["reason"] = "PUBLISH_FAILED";
    fields["message"] = StrCat("the trained model could not be published as ", name, ": ", model.status().message());
    events.push_back({job.attempt, std::nullopt, clock_.Now(), "warning", std::move(fields)});
  }
  Json state = Json::object();
  state["state"] = Name(JobState::kSucceeded);
  state["from"] = Name(JobState::kRunning);
  events.push_back({job.attempt, std::nullopt, clock_.Now(), "state", std::move(state)});
  NIBBLE_ASSIGN_OR_RETURN(const bool marked, database_.MarkPublished(job.id, events));
  // Only after it is marked: until then publishing may be retried, which needs the name.
  if (!model.ok()) state_.models->Unreserve(name, job.id);
  if (observer_ != nullptr && marked) {
    if (model.ok()) observer_->OnModelPublished(job, *model);
    observer_->OnJobEnded(job);
  }
  hub_.Notify(job.id);
  return absl::OkStatus();
}

}  // namespace nibble::jobs
