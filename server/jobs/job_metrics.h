// Metrics of jobs.
#pragma once
#include <string>

#include "server/base/clock.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/event.h"
#include "server/telemetry/metrics.h"

namespace nibble::jobs {

// The states and methods of jobs: label values whose series exist from the start.
telemetry::KnownLabels JobLabels();

// Thread-safe.
class JobMetrics : public JobObserver {
 public:
  JobMetrics(telemetry::Metrics& metrics, base::Clock& clock) : metrics_(metrics), clock_(clock) {}

  void OnJobCreated(const StoredJob& job) override;
  void OnAttemptStarted(const StoredJob& job) override;
  void OnEvent(const StoredJob& job, const Event& event) override;
  void OnAttemptEnded(const StoredJob& job, const std::string& state) override;
  void OnArtifactDamaged(const std::string& job_id) override;
  void OnJobEnded(const StoredJob& job) override;

 private:
  void OnStep(const StoredJob& job, const StepEvent& step);

  telemetry::Metrics& metrics_;
  base::Clock& clock_;
};

}  // namespace nibble::jobs
