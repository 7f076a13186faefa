#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/attempt.h"
#include "server/jobs/policy.h"
#include "server/jobs/records.h"
#include "server/store/model_store.h"

namespace nibble::jobs {

struct ControllerOptions {
  QueueLimits queue;
  std::int64_t max_queued = 1000;
  RetryOptions retry;
  std::int64_t trainer_threads = 1;
  std::string isa = "auto";
  std::string default_device = "cpu";  // what "auto" becomes
  std::string nibble_version = "0.1.0";
  absl::Duration cancel_grace = absl::Seconds(5);   // SIGTERM to SIGKILL
  absl::Duration pause_grace = absl::Seconds(60);   // a checkpoint has to fit in
  absl::Duration hang_timeout = absl::Minutes(30);  // no journal line for so long: killed and retried
  absl::Duration tick = absl::Milliseconds(100);    // while trainers live
  std::uint64_t min_free_bytes = 256ull << 20;      // below: Submit answers DISK_FULL
  absl::Duration request_id_kept = absl::Hours(24);
  // What jobs/ cannot know (does the model take such sequences, is there such a device). Called with the resolved spec.
  std::function<absl::Status(const JobSpec&)> check_spec;
};

// Told what happens, on the thread where it does. Must be quick and may not call the controller. Each thing is told once.
class JobObserver {
 public:
  virtual ~JobObserver() = default;
  virtual void OnEvent(const JobRecord& /*job*/, const Event& /*event*/) {}  // the trainer's: step, eval, ...
  virtual void OnModelPublished(const JobRecord& /*job*/, const store::StoredModel& /*model*/) {}
  // state of AttemptRecord: "SUCCEEDED", "FAILED", "LOST", ...
  virtual void OnAttemptEnded(const JobRecord& /*job*/, const std::string& /*state*/) {}
};

struct ReportAnswer {
  std::int64_t acknowledged = 0;  // every line up to this one is durable
  std::optional<Control> command;
};

}  // namespace nibble::jobs
