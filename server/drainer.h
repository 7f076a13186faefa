// The way out of serving: no new work, what runs comes to its end, what does not is cut.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "server/base/clock.h"

namespace nibble {

// What a server does when it drains, in this order; stop_jobs runs beside the wait for live_calls() to become 0.
struct DrainSteps {
  std::function<void()> refuse;  // new calls, from now on
  std::function<void()> stop_jobs;
  std::function<std::size_t()> live_calls;
  std::function<void()> cut_calls;  // those still there at the deadline
  std::function<void()> end_watches;
};

// Thread-safe. Destruction waits for a drain that has begun.
class Drainer {
 public:
  Drainer(DrainSteps steps, base::Clock& clock);
  ~Drainer();
  Drainer(const Drainer&) = delete;
  Drainer& operator=(const Drainer&) = delete;

  // Returns at once. Begun twice it is one drain with the earlier deadline: a SIGTERM does not wait for the hour that an
  // operator's Drain allowed.
  void Begin(absl::Duration deadline);
  // Until all steps are done; at once where none has begun.
  void Wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
