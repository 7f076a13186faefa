#include "server/drainer.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "server/base/log.h"
#include "server/base/mutex.h"

namespace nibble {
namespace {

constexpr std::chrono::milliseconds kLookAtCalls(10);

}  // namespace

struct Drainer::State {
  State(DrainSteps given_steps, base::Clock& given_clock) : steps(std::move(given_steps)), clock(given_clock) {}

  const DrainSteps steps;
  base::Clock& clock;

  base::Mutex mutex;
  base::Condition done_changed;
  bool begun ABSL_GUARDED_BY(mutex) = false;
  bool done ABSL_GUARDED_BY(mutex) = false;
  absl::Duration until ABSL_GUARDED_BY(mutex) = absl::InfiniteDuration();  // deadline, monotonic
  std::thread thread;  // started by the first Begin, joined by the destructor

  bool InTime() {
    base::MutexLock lock(mutex);
    return clock.Monotonic() < until;
  }

  void Run() {
    std::thread jobs(steps.stop_jobs);  // trainers write their checkpoints while calls end
    bool over = false;                  // true after the cut; calls that arrive later are refused
    while (!over && steps.live_calls() > 0) {
      over = !InTime();
      over ? steps.cut_calls() : std::this_thread::sleep_for(kLookAtCalls);
    }
    jobs.join();
    steps.end_watches();  // by now the watches have shown the end of their jobs
    base::LogInfo("drained", {});
    base::MutexLock lock(mutex);
    done = true;
    done_changed.NotifyAll();
  }
};

Drainer::Drainer(DrainSteps steps, base::Clock& clock) : state_(std::make_unique<State>(std::move(steps), clock)) {}

Drainer::~Drainer() {
  Wait();
  if (state_->thread.joinable()) state_->thread.join();
}

void Drainer::Begin(absl::Duration deadline) {
  State& s = *state_;
  base::MutexLock lock(s.mutex);
  const absl::Duration until = s.clock.Monotonic() + deadline;
  if (until >= s.until) return;
  s.until = until;
  base::LogInfo("draining", {{"deadline_s", absl::ToDoubleSeconds(deadline)}});
  if (s.begun) return;
  s.begun = true;
  s.steps.refuse();
  s.thread = std::thread([&s] { s.Run(); });
}

void Drainer::Wait() {
  State& s = *state_;
  base::MutexLock lock(s.mutex);
  s.done_changed.Wait(lock, [&s]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(s.mutex) { return s.done || !s.begun; });
}

}  // namespace nibble
