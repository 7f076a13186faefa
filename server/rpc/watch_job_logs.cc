#include "server/rpc/watch_job_logs.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/worker_pool.h"
#include "server/store/trainer_log.h"

namespace nibble::rpc {

namespace {

constexpr std::size_t kMaxChunkBytes = 64 << 10;
constexpr std::size_t kChunksAhead = 4;                    // maximum number of chunks that wait for the client
constexpr std::chrono::milliseconds kLookAgainAfter(500);  // at the end of a log that may grow

absl::Status CheckRequest(const v1::WatchJobLogsRequest& request) {
  if (request.has_attempt() && request.attempt() < 1) {
    return base::FieldError("attempt", base::StrCat("is ", request.attempt(), ", wanted 1 or more"));
  }
  if (request.offset() < 0) {
    return base::FieldError("offset", base::StrCat("is ", request.offset(), ", wanted 0 or more"));
  }
  if (request.tail_lines() < 0) {
    return base::FieldError("tail_lines", base::StrCat("is ", request.tail_lines(), ", wanted 0 or more"));
  }
  if (request.has_tail_lines() && request.offset() > 0) {
    return base::FieldError("tail_lines", "must not be set together with offset");
  }
  return absl::OkStatus();
}

class LogWatch : public std::enable_shared_from_this<LogWatch> {
 public:
  using Stream = StreamReactor<v1::JobLogChunk>;
  LogWatch(std::shared_ptr<Stream> stream, jobs::JobController& jobs, const v1::WatchJobLogsRequest& request)
      : stream_(std::move(stream)),
        jobs_(jobs),
        request_(request),
        chunk_bytes_(std::min(kMaxChunkBytes, stream_->call().environment().max_send_bytes / 2)) {}

  // The stream owns the watch, through the callback of OnSpace, until gRPC has finished; the timer does not own it.
  void Begin() {
    auto pump = std::make_shared<base::Pump>(stream_->call().environment().watch_workers,
                                             [self = shared_from_this()] { self->Fill(); });
    pump_ = pump;
    stream_->OnSpace([pump] { pump->Wake(); });
    pump->Wake();
  }

 private:
  store::TrainerLog Log() const { return {jobs_.paths(), request_.name(), attempt_}; }

  // Never runs concurrently.
  void Fill() {
    if (stream_->ended()) return;
    absl::Status status = begun_ ? absl::OkStatus() : Open();
    if (status.ok()) status = TryFill();
    if (!status.ok()) stream_->End(std::move(status));
  }

  absl::Status Open() {
    begun_ = true;
    NIBBLE_RETURN_IF_ERROR(CheckRequest(request_));
    stream_->EndAtDrain();
    NIBBLE_ASSIGN_OR_RETURN(const auto last, jobs_.FindLastAttempt(request_.name()));
    attempt_ = request_.has_attempt() ? request_.attempt() : last.attempt;
    const bool awaits = request_.follow() && last.may_continue;
    if (attempt_ > last.attempt) {
      return store::NoAttempt(request_.name(), attempt_,
                              base::StrCat("does not exist; the last one is ", last.attempt));
    }
    if (attempt_ == 0 && !awaits) {
      return base::WithReason(
          absl::NotFoundError(base::StrCat("job ", request_.name(), " has no log: no attempt has begun")), "ATTEMPT");
    }
    if (attempt_ > 0) NIBBLE_RETURN_IF_ERROR(FindStart(awaits));
    Announce();
    return absl::OkStatus();
  }

  // Chooses the first byte to send and, without `follow`, the end. `awaits`: files that do not exist yet are no error.
  absl::Status FindStart(bool awaits) {
    absl::StatusOr<std::int64_t> size = Log().Size();
    if (absl::IsNotFound(size.status()) && awaits) size = 0;
    if (!size.ok()) return size.status();
    if (!request_.follow()) end_ = *size;
    offset_ = request_.offset();
    if (!request_.has_tail_lines() || *size == 0) return absl::OkStatus();
    NIBBLE_ASSIGN_OR_RETURN(offset_, Log().FindTail(*size, request_.tail_lines()));
    return absl::OkStatus();
  }

  // Tells the client which attempt and byte come next: with these it can continue on another connection.
  void Announce() { Send(""); }

  void Send(std::string data) {
    v1::JobLogChunk chunk;
    chunk.set_attempt(static_cast<std::int32_t>(attempt_));
    chunk.set_offset(offset_);
    offset_ += static_cast<std::int64_t>(data.size());
    chunk.set_data(std::move(data));
    stream_->Push(chunk);  // there is space, or the stream has ended
  }

  // Sends what has been written, until kChunksAhead chunks wait for the client; then OnSpace wakes the watch.
  absl::Status TryFill() {
    if (!stream_->caught_up()) return absl::OkStatus();
    const std::size_t room = std::min(kChunksAhead, stream_->space());
    for (std::size_t sent = 0; sent < room;) {
      NIBBLE_ASSIGN_OR_RETURN(std::string data, ReadNext());
      if (!data.empty()) {
        Send(std::move(data));
        ++sent;
        continue;
      }
      NIBBLE_ASSIGN_OR_RETURN(const AtEnd now, LookAtEnd());
      if (now == AtEnd::kReadAgain) continue;
      if (now != AtEnd::kNextAttempt) return absl::OkStatus();
      ++attempt_;
      offset_ = 0;
      over_ = false;
      Announce();
      ++sent;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadNext() const {
    if (attempt_ == 0 || offset_ >= end_) return std::string();
    const auto left = static_cast<std::size_t>(end_ - offset_);
    absl::StatusOr<std::string> data = Log().Read(offset_, std::min(chunk_bytes_, left));
    // An attempt that did not start may have no files; a job that was deleted is found out by LookAtEnd.
    if (request_.follow() && absl::IsNotFound(data.status())) return std::string();
    return data;
  }

  enum class AtEnd { kReadAgain, kNextAttempt, kWait, kDone };
  // Decides how to continue at the end of the log as it is now. Before it returns kWait it has set the timer; before
  // kDone it has ended the stream.
  absl::StatusOr<AtEnd> LookAtEnd() {
    if (!request_.follow()) {
      stream_->End(absl::OkStatus());
      return AtEnd::kDone;
    }
    NIBBLE_ASSIGN_OR_RETURN(const auto last, jobs_.FindLastAttempt(request_.name()));
    const bool over = attempt_ < last.attempt || !last.has_trainer;
    if (over && !over_) {
      over_ = true;  // the trainer may have written between the last read and its end
      return AtEnd::kReadAgain;
    }
    if (attempt_ < last.attempt) return AtEnd::kNextAttempt;
    if (!last.may_continue) {
      stream_->End(absl::OkStatus());
      return AtEnd::kDone;
    }
    Wait();
    return AtEnd::kWait;
  }

  void Wait() {
    if (waits_.exchange(true)) return;
    timer_.Set(std::chrono::system_clock::now() + kLookAgainAfter, [weak = weak_from_this()](bool passed) {
      const auto self = weak.lock();
      if (!passed || self == nullptr) return;
      self->waits_ = false;
      if (const auto pump = self->pump_.lock()) pump->Wake();
    });
  }

  const std::shared_ptr<Stream> stream_;
  jobs::JobController& jobs_;
  const v1::WatchJobLogsRequest request_;
  const std::size_t chunk_bytes_;
  std::int64_t attempt_ = 0;                                     // being sent; 0: none has begun
  std::int64_t offset_ = 0;                                      // next byte to send
  std::int64_t end_ = std::numeric_limits<std::int64_t>::max();  // of the bytes to send
  bool over_ = false;                                            // the attempt's trainer had ended before the last read
  bool begun_ = false;
  std::atomic<bool> waits_{false};  // for the timer
  std::weak_ptr<base::Pump> pump_;
  grpc::Alarm timer_;
};

}  // namespace

void WatchJobLogs(std::shared_ptr<StreamReactor<v1::JobLogChunk>> stream, jobs::JobController& jobs,
                  const v1::WatchJobLogsRequest& request) {
  std::make_shared<LogWatch>(std::move(stream), jobs, request)->Begin();
}

}  // namespace nibble::rpc
