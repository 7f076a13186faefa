#pragma once
#include <vector>

#include "absl/status/status.h"
#include "server/base/clock.h"
#include "server/jobs/controller_options.h"
#include "server/jobs/database.h"
#include "server/jobs/event_hub.h"
#include "server/store/state_directory.h"

namespace nibble::jobs {

// Publishes the output of a SUCCEEDED job as a model. The database first records which output is published (fenced),
// then the directory is moved, then the database records that it is done. Repeated after a crash at any point, this
// gives the same result. Thread-safe.
class Publisher {
 public:
  Publisher(store::StateDirectory& state, Database& database, base::Clock& clock, EventHub& hub, JobObserver* observer)
      : state_(state), database_(database), clock_(clock), hub_(hub), observer_(observer) {}

  // Appends the event "model", or "warning" (PUBLISH_FAILED) if no retry can help, and the event "state" (SUCCEEDED).
  // On an error, try again later.
  absl::Status Publish(const StoredJob& job);
  // Publishes each output that can be published now, and logs the others: the caller tries again later.
  void PublishAll(const std::vector<StoredJob>& jobs);

 private:
  store::StateDirectory& state_;
  Database& database_;
  base::Clock& clock_;
  EventHub& hub_;
  JobObserver* const observer_;
};

}  // namespace nibble::jobs
