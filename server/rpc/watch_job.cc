#include "server/rpc/watch_job.h"

#include <algorithm>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/worker_pool.h"
#include "server/rpc/job_proto.h"

namespace nibble::rpc {

namespace {

constexpr std::int64_t kPageEvents = 100;

class Watch : public std::enable_shared_from_this<Watch> {
 public:
  using Stream = StreamReactor<v1::JobEvent>;
  Watch(std::shared_ptr<Stream> stream, jobs::JobController& jobs, std::string name, std::int64_t after)
      : stream_(std::move(stream)), jobs_(jobs), name_(std::move(name)), sent_(after) {}

  // The subscription's callback may release the last reference to this watch. Destroying the subscription uses the hub,
  // which a callback must not do, so a worker destroys it.
  ~Watch() {
    if (subscription_ == nullptr) return;
    stream_->call().environment().watch_workers.Run([dropped = std::move(subscription_)] {});
  }

  // Room in the queue and new events of the job wake the watch.
  void Begin() {
    auto pump = std::make_shared<base::Pump>(stream_->call().environment().watch_workers,
                                             [self = shared_from_this()] { self->Fill(); });
    pump_ = pump;
    stream_->OnSpace([pump] { pump->Wake(); });
    pump->Wake();
  }

 private:
  absl::Status SendSnapshot() {
    NIBBLE_ASSIGN_OR_RETURN(job_, jobs_.Get(name_));
    if (sent_ < 0) return base::FieldError("after_sequence", base::StrCat("is ", sent_, ", wanted 0 or more"));
    v1::JobEvent event;
    auto* snapshot = event.mutable_snapshot();
    *snapshot->mutable_job() = ToProto(job_);
    *event.mutable_time() = snapshot->job().create_time();
    snapshot->set_last_sequence(job_.last_sequence);
    snapshot->set_oldest_sequence(1);  // only steps are removed (--keep_step_events), and the first event is not a step
    stream_->Push(event);
    return absl::OkStatus();
  }

  // Never runs concurrently.
  void Fill() {
    if (stream_->ended()) return;
    absl::Status status = begun_ ? absl::OkStatus() : Open();
    if (status.ok()) status = TryFill();
    if (!status.ok()) stream_->End(std::move(status));
  }
  absl::Status Open() {
    begun_ = true;
    NIBBLE_RETURN_IF_ERROR(SendSnapshot());
    subscription_ = jobs_.Subscribe(name_, [weak = pump_] {
      if (const auto alive = weak.lock()) alive->Wake();
    });
    stream_->EndAtDrain();
    return absl::OkStatus();
  }
  // Sends one page; the next one queues behind the watches that wait for a worker. If nothing fits, OnSpace wakes the
  // pump later.
  absl::Status TryFill() {
    const std::int64_t size = std::min<std::int64_t>(static_cast<std::int64_t>(stream_->space()), kPageEvents);
    if (size == 0) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(const auto page, jobs_.Events(name_, sent_, size));
    for (const jobs::Event& event : page.events) {
      v1::JobEvent message = ToProto(job_, event);
      if (!stream_->Push(message)) return absl::OkStatus();
      sent_ = event.sequence;
    }
    if (page.ended) {
      stream_->End(absl::OkStatus());
    } else if (const auto alive = pump_.lock(); alive != nullptr && !page.events.empty()) {
      alive->Wake();
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<Stream> stream_;
  jobs::JobController& jobs_;
  const std::string name_;
  jobs::StoredJob job_;  // as in the snapshot
  std::int64_t sent_;
  bool begun_ = false;
  std::weak_ptr<base::Pump> pump_;
  std::shared_ptr<jobs::EventHub::Subscription> subscription_;
};

}  // namespace

void WatchJob(std::shared_ptr<StreamReactor<v1::JobEvent>> stream, jobs::JobController& jobs, const std::string& name,
              std::int64_t after) {
  std::make_shared<Watch>(std::move(stream), jobs, name, after)->Begin();
}

}  // namespace nibble::rpc
