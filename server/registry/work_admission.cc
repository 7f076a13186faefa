#include "server/registry/work_admission.h"

#include <chrono>
#include <limits>
#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::registry {

namespace {

constexpr std::chrono::milliseconds kCheckEvery(100);  // time between two calls of `cancelled` while waiting

absl::Status TooLarge(const std::string& what, const WorkMemory& need, std::int64_t have, bool may_fit_later) {
  const std::string why =
      may_fit_later
          ? base::StrCat(have, " bytes of the memory that models and trainers share are free: unload models, wait ",
                         "for jobs to end, or raise --serve_memory_bytes if that is the limit")
          : base::StrCat("models and trainers together may use ", have, ": raise --serve_memory_bytes if that is the ",
                         "limit, or use a larger machine");
  return base::WithReason(absl::ResourceExhaustedError(base::StrCat(what, " needs ", need.total(), " bytes, ", why)),
                          "OUT_OF_DEVICE_MEMORY",
                          {{"need", std::to_string(need.total())},
                           {"have", std::to_string(have)},
                           {"plan", base::StrCat("weights ", need.weights, ", kv_cache ", need.kv_cache, ", buffers ",
                                                 need.buffers, ", data ", need.data)}});
}

}  // namespace

std::int64_t WorkMemory::total() const {
  std::int64_t sum = 0;
  for (const std::int64_t part : {weights, kv_cache, buffers, data}) {
    if (__builtin_add_overflow(sum, part, &sum)) return std::numeric_limits<std::int64_t>::max();
  }
  return sum;
}

void WorkAdmission::Queue::Leave(std::uint64_t ticket) {
  base::MutexLock lock(mutex);
  tickets.erase(ticket);
  changed.NotifyAll();
}

absl::StatusOr<WorkAdmission::Turn> WorkAdmission::Await(const std::string& what, const WorkMemory& need,
                                                         const Cancelled& cancelled,
                                                         const std::function<void()>& waiting) {
  if (need.total() > memory_->limit()) return TooLarge(what, need, memory_->limit(), /*may_fit_later=*/false);
  std::uint64_t ticket = 0;
  {
    base::MutexLock lock(queue_->mutex);
    ticket = ++queue_->last;
    queue_->tickets.insert(ticket);
  }
  // From here on the queue advances however this work ends.
  const std::shared_ptr<const void> place(queue_.get(),
                                          [queue = queue_, ticket](const void*) { queue->Leave(ticket); });
  bool notified = false;
  while (true) {
    if (cancelled && cancelled()) return absl::CancelledError("cancelled while waiting for other work on models");
    {
      base::MutexLock lock(queue_->mutex);
      const auto first = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_->mutex) {
        return *queue_->tickets.begin() == ticket;
      };
      if (notified ? queue_->changed.WaitFor(lock, kCheckEvery, first) : first()) break;
    }
    if (!notified && waiting) waiting();
    notified = true;
  }
  auto memory = memory_->TryTake(need.total());
  if (memory == nullptr) return TooLarge(what, need, memory_->left(), /*may_fit_later=*/true);
  // Members are destroyed from last to first: the memory is returned before the next work asks for its own.
  struct Held {
    std::shared_ptr<const void> place, memory;
  };
  return Turn(std::make_shared<const Held>(Held{place, std::move(memory)}));
}

std::size_t WorkAdmission::num_waiting() const {
  base::MutexLock lock(queue_->mutex);
  return queue_->tickets.empty() ? 0 : queue_->tickets.size() - 1;
}

}  // namespace nibble::registry
