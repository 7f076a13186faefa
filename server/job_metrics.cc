#include "server/job_metrics.h"

#include <algorithm>
#include <iterator>

namespace nibble {

namespace {

double Number(const base::Json& body, const char* key) {
  return base::GetNumber(body, key, "event", 0).value_or(0);
}
std::string Text(const base::Json& body, const char* key) {
  return base::GetString(body, key, "event", "").value_or("");
}
std::string DeviceOf(const jobs::StoredJob& job) { return job.spec.device.empty() ? "cpu" : job.spec.device; }

}  // namespace

telemetry::KnownLabels JobLabels() {
  telemetry::KnownLabels known;
  for (int i = 0; i < jobs::kNumJobStates; ++i) known.job_states.push_back(jobs::Name(static_cast<jobs::JobState>(i)));
  known.job_methods.assign(std::begin(jobs::kMethods), std::end(jobs::kMethods));
  return known;
}

void JobMetrics::OnJobCreated(const jobs::StoredJob& job) { metrics_.JobCreated(job.spec.method); }

void JobMetrics::OnAttemptStarted(const jobs::StoredJob& job) {
  metrics_.JobAttempt(job.spec.method, "start");
  if (job.attempt == 1) metrics_.JobQueueWait(absl::ToDoubleSeconds(clock_.Now() - job.created));
}

void JobMetrics::OnEvent(const jobs::StoredJob& job, const jobs::Event& event) {
  if (event.type == "step") OnStep(job, event.body);
  OnLaunches(job, event.body);
  if (event.type == "checkpoint") {
    metrics_.CheckpointSaved(Number(event.body, "duration_ms") * 1e-3,
                             static_cast<std::int64_t>(Number(event.body, "bytes")), absl::ToDoubleSeconds(event.time - absl::UnixEpoch()));
  }
  if (event.type == "warning" && Text(event.body, "reason") == "CHECKPOINT_FAILED") metrics_.CheckpointFailed("CHECKPOINT_FAILED");
}

void JobMetrics::OnStep(const jobs::StoredJob& job, const base::Json& body) {
  metrics_.TrainStep(job.spec.method, job.id,
                     {.tokens = static_cast<std::int64_t>(Number(body, "tokens")),
                      .seconds = Number(body, "step_ms") * 1e-3,
                      .loss = Number(body, "loss"),
                      .tokens_per_s = Number(body, "tokens_per_s")});
  const std::string device = DeviceOf(job);
  metrics_.RaisePeakMemory("trainer", device, static_cast<std::uint64_t>(std::max(0.0, Number(body, "peak_memory_bytes"))));
}

// Any event may carry launches by kernel: the launches since the last event that carried them.
void JobMetrics::OnLaunches(const jobs::StoredJob& job, const base::Json& body) {
  const std::string device = DeviceOf(job);
  const auto launches = body.find("launches");
  if (launches == body.end() || !launches->is_object()) return;
  for (const auto& item : launches->items()) {
    if (!item.value().is_number_unsigned() && !item.value().is_number_integer()) continue;
    const auto count = item.value().get<std::int64_t>();
    if (count > 0) metrics_.AddKernelLaunches("train", device, item.key(), static_cast<std::uint64_t>(count));
  }
}

void JobMetrics::OnAttemptEnded(const jobs::StoredJob& job, const std::string& state) {
  metrics_.TrainingEnded(job.id);
  if (state != "SUCCEEDED") metrics_.JobAttempt(job.spec.method, state);
}

void JobMetrics::OnArtifactDamaged(const std::string&) { metrics_.ArtifactVerifyFailed(); }

void JobMetrics::OnJobEnded(const jobs::StoredJob& job) {
  if (job.state == jobs::JobState::kFailed && job.error.has_value()) metrics_.JobFailed(job.spec.method, job.error->reason);
  const absl::Time ended = job.ended.value_or(clock_.Now());
  metrics_.JobFinished(job.spec.method, jobs::Name(job.state), absl::ToDoubleSeconds(ended - job.created));
}

}  // namespace nibble
