#include "server/jobs/job_metrics.h"

#include <algorithm>
#include <variant>

#include "server/jobs/method.h"

namespace nibble::jobs {

namespace {

std::string DeviceOf(const StoredJob& job) { return job.spec.device.empty() ? "cpu" : job.spec.device; }

}  // namespace

telemetry::KnownLabels JobLabels() {
  telemetry::KnownLabels known{.job_methods = {}, .job_states = {}};
  for (int i = 0; i < kNumJobStates; ++i) known.job_states.push_back(Name(static_cast<JobState>(i)));
  for (const Method* method : Methods()) known.job_methods.push_back(method->name());
  return known;
}

void JobMetrics::OnJobCreated(const StoredJob& job) { metrics_.JobCreated(job.spec.method); }

void JobMetrics::OnAttemptStarted(const StoredJob& job) {
  metrics_.JobAttempt(job.spec.method, "start");
  if (job.attempt == 1) metrics_.JobQueueWait(absl::ToDoubleSeconds(clock_.Now() - job.created));
}

void JobMetrics::OnEvent(const StoredJob& job, const Event& event) {
  const auto body = Decode(event.type, event.body);
  if (!body.has_value()) return;
  if (const auto* step = std::get_if<StepEvent>(&*body)) OnStep(job, *step);
  for (const auto& [kernel, count] : LaunchesOf(*body)) {
    if (count > 0) metrics_.AddKernelLaunches("train", DeviceOf(job), kernel, static_cast<std::uint64_t>(count));
  }
  if (const auto* saved = std::get_if<CheckpointEvent>(&*body)) {
    metrics_.CheckpointSaved(saved->duration_ms.value_or(0) * 1e-3, saved->bytes.value_or(0),
                             absl::ToDoubleSeconds(event.time - absl::UnixEpoch()));
  }
  const auto* warning = std::get_if<WarningEvent>(&*body);
  if (warning != nullptr && warning->reason == "CHECKPOINT_FAILED") metrics_.CheckpointFailed("CHECKPOINT_FAILED");
}

void JobMetrics::OnStep(const StoredJob& job, const StepEvent& step) {
  metrics_.TrainStep(job.spec.method, job.id,
                     {.tokens = step.tokens.value_or(0),
                      .seconds = step.step_ms.value_or(0) * 1e-3,
                      .loss = step.loss.value_or(0),
                      .tokens_per_s = step.tokens_per_s.value_or(0)});
  const auto peak = static_cast<std::uint64_t>(std::max<std::int64_t>(0, step.peak_memory_bytes.value_or(0)));
  metrics_.RaisePeakMemory("trainer", DeviceOf(job), peak);
}

void JobMetrics::OnAttemptEnded(const StoredJob& job, const std::string& state) {
  metrics_.TrainingEnded(job.id);
  // The metric counts starts ("start", above) and attempts that ended early, by their state.
  if (state != "SUCCEEDED") metrics_.JobAttempt(job.spec.method, state);
}

void JobMetrics::OnArtifactDamaged(const std::string&) { metrics_.ArtifactVerifyFailed(); }

void JobMetrics::OnJobEnded(const StoredJob& job) {
  if (job.state == JobState::kFailed && job.error.has_value()) metrics_.JobFailed(job.spec.method, job.error->reason);
  const absl::Time ended = job.ended.value_or(clock_.Now());
  metrics_.JobFinished(job.spec.method, Name(job.state), absl::ToDoubleSeconds(ended - job.created));
}

}  // namespace nibble::jobs
