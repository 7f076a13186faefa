// Drains the server: refuses new work, lets running work end, and cuts what does not end in time.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "server/base/clock.h"

namespace nibble {

// The steps of a drain, in this order; stop_jobs runs while the drainer waits for live_calls() to become 0.
struct DrainSteps {
  std::function<void()> refuse;  // refuses new calls from now on
  std::function<void()> stop_jobs;
  std::function<std::size_t()> live_calls;
  std::function<void()> cut_calls;    // cancels calls that are still live at the deadline
  std::function<void()> end_watches;  // ends the WatchJob, WatchJobLogs and WatchLoad streams
};

// Thread-safe. Destruction waits for a drain that has begun.
class Drainer {
 public:
  Drainer(DrainSteps steps, base::Clock& clock);
  ~Drainer();
  Drainer(const Drainer&) = delete;
  Drainer& operator=(const Drainer&) = delete;

  // Returns at once. A second call continues the same drain, and the earlier deadline counts: a SIGTERM does not wait
  // for the hour that an operator's Drain allowed.
  void Begin(absl::Duration deadline);
  // Waits until all steps are done; returns at once if no drain has begun.
  void Wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
