#include "server/serve/model_loads.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/queue_full.h"
#include "server/base/status_macros.h"

namespace nibble::serve {

namespace {

constexpr std::chrono::milliseconds kAskCancelled(100);

}  // namespace

ModelLoads::ModelLoads(ModelManager& models, base::WorkerPool& workers, base::Clock& clock, Exists exists,
                       std::size_t max_waiting)
    : models_(models),
      workers_(workers),
      clock_(clock),
      exists_(std::move(exists)),
      max_waiting_(static_cast<int>(max_waiting)),
      max_waiting_of_principal_(std::max(1, max_waiting_ / 4)),
      places_(/*flag=*/"", max_waiting_, /*flag_each=*/"", max_waiting_of_principal_, "QUEUE_FULL") {}

ModelLoads::~ModelLoads() { Stop(); }

void ModelLoads::Stop() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;  // under the lock: no load starts after this
  }
  loaders_.AwaitIdle();
}

absl::Duration ModelLoads::WaitNow() const {
  absl::Duration wait = loaders_.last_wait();
  const absl::Duration now = clock_.Monotonic();
  for (const auto& [name, model] : waiting_) wait = std::max(wait, now - model.came);
  return wait;
}

absl::StatusOr<std::uint64_t> ModelLoads::Wait(const std::string& name, const std::string& principal, Then then) {
  NIBBLE_RETURN_IF_ERROR(exists_(name));
  base::MutexLock lock(mutex_);
  if (stop_) return base::WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING");
  if (places_.open() >= max_waiting_) return base::TooManyWait(WaitNow());
  auto place = places_.Take(principal);
  if (!place.ok()) {
    return base::TooManyOfPrincipal("calls waiting for a model to load",
                                    static_cast<std::size_t>(max_waiting_of_principal_), WaitNow());
  }
  const auto [at, first] = waiting_.try_emplace(name);
  if (first) at->second.came = clock_.Monotonic();
  at->second.waiters.emplace(++last_waiter_, Waiter{*std::move(place), std::move(then)});
  if (first) loaders_.Run([this, name] { Load(name); });
  return last_waiter_;
}

ModelLoads::Loaded ModelLoads::Await(const std::string& name, const std::string& principal,
                                     const base::Cancelled& cancelled) {
  struct Answer {
    base::Mutex mutex;
    base::Condition came;
    std::optional<Loaded> loaded ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  NIBBLE_ASSIGN_OR_RETURN(const std::uint64_t waiter, Wait(name, principal, [answer](Loaded loaded) {
                            base::MutexLock lock(answer->mutex);
                            answer->loaded = std::move(loaded);
                            answer->came.NotifyAll();
                          }));
  const auto loaded = [&]() -> std::optional<Loaded> {
    base::MutexLock lock(answer->mutex);
    while (!answer->loaded.has_value()) {
      if (cancelled && cancelled()) return std::nullopt;
      answer->came.WaitFor(lock, kAskCancelled,
                           [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answer->mutex) { return answer->loaded.has_value(); });
    }
    return std::move(answer->loaded);
  }();
  if (loaded.has_value()) return *loaded;
  Forget(name, waiter);
  return absl::CancelledError("cancelled while the model was loading");
}

bool ModelLoads::Forget(const std::string& name, std::uint64_t waiter) {
  Waiter dropped;  // declared before the lock, so that it is destroyed after the unlock
  base::MutexLock lock(mutex_);
  const auto model = waiting_.find(name);
  if (model == waiting_.end()) return false;
  std::map<std::uint64_t, Waiter>& waiters = model->second.waiters;
  const auto at = waiters.find(waiter);
  if (at == waiters.end()) return false;
  dropped = std::move(at->second);
  waiters.erase(at);
  dropped.place.reset();
  return true;
}

void ModelLoads::Load(const std::string& name) {
  absl::Duration came;
  {
    base::MutexLock lock(mutex_);
    const auto at = waiting_.find(name);
    if (at->second.waiters.empty()) {  // no call waits any longer, and the load has not started
      waiting_.erase(at);
      return;
    }
    came = at->second.came;
  }
  const Loaded loaded = models_.Acquire(name, [this] { return stop_.load(); });
  loaders_.NoteWait(clock_.Monotonic() - came);
  std::map<std::uint64_t, Waiter> waiting;
  {
    base::MutexLock lock(mutex_);
    const auto at = waiting_.find(name);
    waiting = std::move(at->second.waiters);
    waiting_.erase(at);
    for (auto& [waiter, one] : waiting) one.place.reset();
  }
  for (auto& one : waiting) {
    workers_.Run([then = std::move(one.second.then), loaded] { then(loaded); });
  }
}

}  // namespace nibble::serve
