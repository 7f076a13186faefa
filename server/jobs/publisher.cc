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
bool IsPermanent(const absl::Status& status) { return absl::IsAlreadyExists(status) || absl::IsDataLoss(status); }

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

ModelEvent EventOf(const store::StoredModel& model) {
  const auto text = [&](const char* key) { return base::GetString(model.info, key, "nibble.json", "").value_or(""); };
  return {.model = model.name,
          .format = text("format"),
          .digest = text("weights_digest"),
          .bytes = static_cast<std::int64_t>(model.bytes)};
}

}  // namespace

absl::Status Publisher::Publish(const StoredJob& job) {
  const std::string& name = job.spec.output_model;
  const absl::StatusOr<store::StoredModel> model = MakeModel(state_, job);
  if (!model.ok() && !IsPermanent(model.status())) return model.status();

  std::vector<NewEvent> events;
  if (model.ok()) {
    events.push_back(ServerEvent(job.attempt, clock_.Now(), EventOf(*model)));
  } else {
    base::LogError("cannot publish the output of a job",
                   {{"job", job.id}, {"why", std::string(model.status().message())}});
    const WarningEvent warning{
        .reason = "PUBLISH_FAILED",
        .message = StrCat("the trained model could not be published as ", name, ": ", model.status().message())};
    events.push_back(ServerEvent(job.attempt, clock_.Now(), warning));
  }
  const StateEvent state{.state = Name(JobState::kSucceeded), .from = Name(JobState::kRunning)};
  events.push_back(ServerEvent(job.attempt, clock_.Now(), state));
  NIBBLE_ASSIGN_OR_RETURN(const bool marked, database_.MarkPublished(job.id, events));
  // The name is released only after the job is marked: until then publishing may be retried, which needs the name.
  if (!model.ok()) state_.models->Unreserve(name, job.id);
  if (observer_ != nullptr && marked) {
    if (model.ok()) observer_->OnModelPublished(job, *model);
    observer_->OnJobEnded(job);
  }
  hub_.Notify(job.id);
  return absl::OkStatus();
}

void Publisher::PublishAll(const std::vector<StoredJob>& jobs) {
  for (const StoredJob& job : jobs) {
    if (absl::Status published = Publish(job); !published.ok()) {
      base::LogError("cannot publish a trained model, will retry",
                     {{"job", job.id}, {"why", std::string(published.message())}});
    }
  }
}

}  // namespace nibble::jobs
