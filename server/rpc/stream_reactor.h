// Server streams: back-pressure, cancel, deadline and lifetime in one tested place.
#pragma once
#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/rpc/call.h"
#include "server/rpc/slow_reader.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

// A server stream that other threads feed through a bounded queue. Lives until gRPC has finished and the last
// shared_ptr is released. Thread-safe.
template <typename Response>
class StreamReactor : public grpc::ServerWriteReactor<Response> {
 public:
  // `slots`: the stream holds a slot until it is done; nullptr: no limit.
  static std::shared_ptr<StreamReactor> Make(CallEnvironment& environment, grpc::CallbackServerContext* context,
                                             const char* method, base::StreamSlots* slots = nullptr) {
    std::shared_ptr<StreamReactor> stream(new StreamReactor(environment, context, method));
    stream->self_ = stream;
    absl::Status status = stream->call_.admitted();
    if (status.ok() && slots != nullptr) status = stream->TakePlace(*slots);
    // The handler must check this: `if (stream->ended()) return stream.get();`.
    if (!status.ok()) stream->End(std::move(status));
    return stream;
  }

  ~StreamReactor() override {
    if (drain_ != 0) call_.environment().drain.Remove(drain_);
  }

  const Call& call() const { return call_; }

  // False, without changing `message`: the reader is stream_buffer messages behind, or the stream has ended.
  bool Push(Response& message) {
    Response* first = nullptr;
    {
      base::MutexLock lock(mutex_);
      if (ending_ || queue_.size() >= call_.environment().stream_buffer) return false;
      queue_.push_back(std::move(message));
      if (writing_) return true;
      writing_ = true;
      first = &queue_.front();
    }
    this->StartWrite(first);
    return true;
  }
  // Free places in the queue.
  std::size_t space() const {
    base::MutexLock lock(mutex_);
    return ending_ ? 0 : call_.environment().stream_buffer - std::min(queue_.size(), call_.environment().stream_buffer);
  }
  // Whether the reader has taken all messages.
  bool caught_up() const {
    base::MutexLock lock(mutex_);
    return queue_.empty();
  }
  // Number of messages that the reader or the connection's buffers have taken.
  std::uint64_t taken() const {
    base::MutexLock lock(mutex_);
    return taken_;
  }
  // Ends the stream after the queued messages. If the stream has been ended already, `status` is ignored. Starts
  // WatchReader, because no producer is left to notice a reader that has stopped.
  void End(absl::Status status) {
    Stop(std::move(status), /*drop=*/false);
    WatchReader();
  }
  // From now on, aborts the stream (SLOW_CONSUMER) when messages wait and the reader takes none for the time
  // CallEnvironment::slow_reader, or fewer than `min_rate` per second over that time. A second call of WatchReader
  // has no effect.
  void WatchReader(double min_rate = 0) {
    {
      base::MutexLock lock(mutex_);
      if (finished_ || watch_.has_value()) return;
      reader_ = SlowReader(call_.environment().slow_reader, min_rate);
      watch_.emplace();
    }
    LookAtReader();
  }
  // Ends the stream and drops the queued messages. If the client does not read the message being written within
  // CallEnvironment::last_read, the call is cut and its status is not sent, because a client that does not read would
  // not receive it.
  void Abort(absl::Status status) {
    Stop(std::move(status), /*drop=*/true);
    std::weak_ptr<StreamReactor> weak;
    {
      base::MutexLock lock(mutex_);
      if (finished_ || self_ == nullptr || cut_.has_value()) return;
      cut_.emplace();
      weak = self_;
    }
    cut_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(call_.environment().last_read),
              [weak](bool passed) {
                if (const auto alive = weak.lock(); passed && alive != nullptr) alive->CutOff();
              });
  }
  bool ended() const {
    base::MutexLock lock(mutex_);
    return ending_;
  }

  // For a stream that does not end by itself: ends it (DRAINING) when the server begins to drain. Call it at most once.
  void EndAtDrain() {
    std::weak_ptr<StreamReactor> weak;
    {
      base::MutexLock lock(mutex_);
      if (self_ == nullptr) return;
      weak = self_;
    }
    drain_ = call_.environment().drain.Add([weak] {
      if (const auto alive = weak.lock()) {
        alive->End(base::WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING"));
      }
    });
  }

  // Calls `callback` from gRPC's threads when the queue has become empty, and when the client ended the stream. Call
  // this before the first Push. The callback may hold the stream, so it is released when the stream is done, or at once
  // if the stream is already done.
  void OnSpace(std::function<void()> callback) {
    base::MutexLock lock(mutex_);
    if (self_ != nullptr) on_space_ = std::move(callback);
  }

 private:
  StreamReactor(CallEnvironment& environment, grpc::CallbackServerContext* context, const char* method)
      : call_(environment, context, CallType::kServerStream, method),
        reader_(environment.slow_reader, /*min_rate=*/0) {}

  absl::Status TakePlace(base::StreamSlots& slots) {
    auto place = slots.Take(auth::FairnessKey(call_.principal()));
    if (!place.ok()) return place.status();
    base::MutexLock lock(mutex_);
    place_ = *std::move(place);
    return absl::OkStatus();
  }

  void LookAtReader() {
    std::weak_ptr<StreamReactor> weak;
    bool slow;
    {
      base::MutexLock lock(mutex_);
      if (finished_ || self_ == nullptr) return;
      weak = self_;
      if (queue_.empty()) reader_.CaughtUp();
      slow = reader_.TooSlow(taken_, !queue_.empty(), call_.environment().clock.Monotonic());
    }
    if (slow) return Abort(ReadsTooSlowly());
    // Four looks per window: a slow reader is found at most a quarter of a window late.
    watch_->Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(call_.environment().slow_reader / 4),
                [weak](bool passed) {
                  if (const auto alive = weak.lock(); passed && alive != nullptr) alive->LookAtReader();
                });
  }

  void CutOff() {
    base::MutexLock lock(mutex_);
    if (!finished_ && self_ != nullptr) call_.Cut();  // the context is valid until OnDone
  }

  void Stop(absl::Status status, bool drop) {
    {
      base::MutexLock lock(mutex_);
      const std::size_t kept = writing_ ? 1 : 0;  // gRPC still reads the message that is being written
      if (ending_) {
        if (!drop) return;
        // Never report OK for a truncated answer.
        if (status_.ok() && queue_.size() > kept) status_ = std::move(status);
      } else {
        ending_ = true;
        status_ = std::move(status);
      }
      if (drop && queue_.size() > kept) queue_.resize(kept);
      if (writing_ || finished_) return;
      finished_ = true;
    }
    this->Finish(call_.End(status_));
  }

  void OnWriteDone(bool ok) override {
    std::function<void()> on_space;
    Response* next = nullptr;
    bool finish = false;
    {
      base::MutexLock lock(mutex_);
      queue_.pop_front();
      if (ok) ++taken_;
      if (!ok && !ending_) {
        ending_ = true;
        status_ = absl::CancelledError("the client is gone");
      }
      if (!ok) queue_.clear();
      if (!queue_.empty()) {
        // Choose under the lock: once writing_ is false, a concurrent Push may start a write.
        next = &queue_.front();
      } else {
        writing_ = false;
        if (ending_ && !finished_) finish = finished_ = true;
        if (!ending_) on_space = on_space_;
      }
    }
    if (finish) {
      this->Finish(call_.End(status_));
    } else if (next != nullptr) {
      this->StartWrite(next);
    } else if (on_space) {
      on_space();
    }
  }

  void OnCancel() override {
    call_.Cancel();
    std::function<void()> on_space;
    {
      base::MutexLock lock(mutex_);
      on_space = on_space_;
    }
    Stop(absl::CancelledError("cancelled by the client, or its deadline passed"), /*drop=*/true);
    if (on_space) on_space();
  }
  void OnDone() override {
    // Declared before the lock, so that they are destroyed after the unlock: they may own this object.
    std::function<void()> dropped;
    std::shared_ptr<StreamReactor> self;
    std::shared_ptr<const void> place;
    base::MutexLock lock(mutex_);
    dropped.swap(on_space_);
    self.swap(self_);
    place.swap(place_);
  }

  Call call_;
  mutable base::Mutex mutex_;
  std::deque<Response> queue_ ABSL_GUARDED_BY(mutex_);  // while writing_, the front is being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::uint64_t taken_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_;  // set with ending_
  std::function<void()> on_space_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<StreamReactor> self_;  // keeps this object until OnDone; guarded by mutex_ once Make has set it
  std::shared_ptr<const void> place_ ABSL_GUARDED_BY(mutex_);
  SlowReader reader_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t drain_ = 0;           // set once, by EndAtDrain()
  std::optional<grpc::Alarm> cut_;    // created once, by Abort()
  std::optional<grpc::Alarm> watch_;  // created once, by WatchReader()
};

}  // namespace nibble::rpc
