// A stream of answers from an engine, with back-pressure.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/base/cancel_token.h"
#include "server/rpc/slow_reader.h"
#include "server/rpc/stream_reactor.h"

namespace nibble::rpc {

// The stream of a request's answer. While the client reads slowly, the request waits between two steps, so that at most
// stream_buffer messages wait. If the client stays slow, the request ends. Used only by the engine's thread.
template <typename Reply>
class PacedStream {
 public:
  explicit PacedStream(std::shared_ptr<StreamReactor<Reply>> stream)
      : stream_(std::move(stream)),
        cancel_(stream_->call().cancel()),
        reader_(stream_->call().environment().slow_reader, stream_->call().environment().min_read_rate) {}

  // Whether another step may run. reserve: maximum number of messages before the engine asks again.
  bool Ready(std::size_t reserve) {
    if (stream_->ended() || stream_->caught_up()) {
      reader_.CaughtUp();
      return true;
    }
    const bool behind = stream_->space() <= reserve;
    if (reader_.TooSlow(stream_->taken(), behind, stream_->call().environment().clock.Monotonic())) Lose();
    return !behind;
  }
  void Push(Reply& reply) {
    if (!slow_ && !stream_->Push(reply) && !stream_->ended()) Lose();
  }
  // The status that the client gets if the engine ended the request with `status`. Never OK for a truncated answer.
  absl::Status Why(const absl::Status& status) const {
    return slow_ && (status.ok() || absl::IsCancelled(status)) ? ReadsTooSlowly() : status;
  }
  // Drops the messages that a slow reader has not taken, because it would not read them in time.
  void End(const absl::Status& status) { slow_ ? stream_->Abort(status) : stream_->End(status); }

 private:
  void Lose() {
    slow_ = true;
    cancel_.Cancel();
  }

  const std::shared_ptr<StreamReactor<Reply>> stream_;
  base::CancelToken cancel_;
  SlowReader reader_;
  bool slow_ = false;
};

}  // namespace nibble::rpc
