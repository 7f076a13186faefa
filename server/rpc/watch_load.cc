#include "server/rpc/watch_load.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

constexpr absl::Duration kShortest = absl::Milliseconds(100);
constexpr absl::Duration kLongest = absl::Hours(1);

class LoadWatch : public std::enable_shared_from_this<LoadWatch> {
 public:
  using Stream = StreamReactor<v1::ServerLoad>;
  LoadWatch(std::shared_ptr<Stream> stream, absl::Duration interval, std::function<v1::ServerLoad()> measure)
      : stream_(std::move(stream)), interval_(interval), measure_(std::move(measure)) {}

  // The stream owns the watch, through the callback of OnSpace, until gRPC has finished; the timer does not own it.
  void Begin() {
    stream_->OnSpace([self = shared_from_this()] {});
    stream_->EndAtDrain();
    Send();
  }

 private:
  // Runs on a worker, because measuring reads the database.
  void Send() {
    if (stream_->ended()) return;
    if (stream_->space() > 0) {
      v1::ServerLoad load = measure_();
      stream_->Push(load);
    }
    Wait();
  }
  void Wait() {
    timer_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(interval_), [weak = weak_from_this()](
                                                                                             bool passed) {
      const auto self = weak.lock();
      if (!passed || self == nullptr || self->stream_->ended()) return;
      // If the workers are full, skip this message.
      const Call& call = self->stream_->call();
      if (!call.environment().watch_workers.TryRun([self] { self->Send(); }, auth::FairnessKey(call.principal())))
        self->Wait();
    });
  }

  const std::shared_ptr<Stream> stream_;
  const absl::Duration interval_;
  const std::function<v1::ServerLoad()> measure_;
  grpc::Alarm timer_;
};

}  // namespace

void WatchLoad(std::shared_ptr<StreamReactor<v1::ServerLoad>> stream, const v1::WatchLoadRequest& request,
               std::function<v1::ServerLoad()> measure) {
  const absl::Duration interval = request.has_interval() ? FromProto(request.interval()) : absl::Seconds(1);
  if (interval < kShortest || interval > kLongest) {
    stream->End(base::FieldError(
        "interval", base::StrCat("is ", absl::FormatDuration(interval), ", wanted ", absl::FormatDuration(kShortest),
                                 " to ", absl::FormatDuration(kLongest))));
    return;
  }
  std::make_shared<LoadWatch>(std::move(stream), interval, std::move(measure))->Begin();
}

}  // namespace nibble::rpc
