#pragma once
#include <grpcpp/alarm.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/rpc/call.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

// Receives the messages of a client stream, one at a time, on workers.
template <typename Request>
class UploadSink {
 public:
  using End = std::function<void(const absl::Status& why)>;
  virtual ~UploadSink() = default;  // removes what was received, unless the last message came or Lost() kept it
  // Called before the first message. The sink may call `end` at any time, from any thread, to end the stream.
  virtual void Attach(const Call& call, End end) = 0;
  // The stream ended without a last message and without an error of the sink: the connection was lost, the client ended
  // it, or it became too old. Not called for a stream of too many messages. Called at most once, before the sink is
  // destroyed.
  virtual void Lost() = 0;
  // True: `message` was the last one, and the response is filled.
  virtual absl::StatusOr<bool> Take(const Request& message) = 0;
};

// A client stream that feeds a sink. A timer ends a stream older than CallEnvironment::max_stream_age, even if its
// client is silent. Lives until gRPC has finished and no worker or timer holds it.
template <typename Request>
class UploadReactor : public grpc::ServerReadReactor<Request>,
                      public std::enable_shared_from_this<UploadReactor<Request>> {
 public:
  static UploadReactor* Make(CallEnvironment& environment, grpc::CallbackServerContext* context, const char* method,
                             std::unique_ptr<UploadSink<Request>> sink) {
    std::shared_ptr<UploadReactor> upload(new UploadReactor(environment, context, method, std::move(sink)));
    upload->self_ = upload;
    upload->Begin();
    return upload.get();
  }

 private:
  // The holder may end the stream. kClient: a read waits for the client, and Stop() may take the turn. kWorker: Begin()
  // or a worker runs, and ends the stream itself if stopped_ is set afterwards. kStop: Stop() has taken the turn.
  enum class Turn { kClient, kWorker, kStop };

  UploadReactor(CallEnvironment& environment, grpc::CallbackServerContext* context, const char* method,
                std::unique_ptr<UploadSink<Request>> sink)
      : call_(environment, context, CallType::kClientStream, method), sink_(std::move(sink)) {}

  void Begin() {
    if (!call_.admitted().ok()) return End(call_.admitted());
    sink_->Attach(call_, [weak = this->weak_from_this()](const absl::Status& why) {
      if (const auto upload = weak.lock(); upload != nullptr) upload->Stop(why, /*lost=*/false);
    });
    timer_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(call_.environment().max_stream_age),
               [weak = this->weak_from_this()](bool passed) {
                 const auto upload = weak.lock();
                 if (passed && upload != nullptr) upload->Stop(upload->TooOld(), /*lost=*/true);
               });
    ReadNext();
  }
  void ReadNext() {
    {
      base::MutexLock lock(mutex_);
      if (stopped_.ok()) {
        turn_ = Turn::kClient;
        // Under the lock: Stop() must not end the stream between setting turn_ and StartRead.
        return this->StartRead(&message_);
      }
    }
    EndStopped();
  }
  // Must not take the lock: gRPC may call this from within StartRead.
  void OnReadDone(bool ok) override {
    call_.environment().workers.Run([self = this->shared_from_this(), ok] { self->Process(ok); },
                                    auth::FairnessKey(call_.principal()));
  }
  void Process(bool ok) {
    {
      base::MutexLock lock(mutex_);
      if (turn_ == Turn::kStop) return;
      turn_ = Turn::kWorker;
    }
    if (!ok) {
      sink_->Lost();
      return End(call_.cancel().cancelled() ? absl::CancelledError("cancelled by the client, or its deadline passed")
                                            : base::FieldError("message", "the stream ended before `finish`"));
    }
    const CallEnvironment& environment = call_.environment();
    // Count only small messages: the limit of an upload's bytes bounds the number of large ones.
    const std::size_t large = environment.max_chunk_bytes / 2;
    if (message_.ByteSizeLong() < large && ++num_messages_ > environment.max_stream_messages) {
      const auto what =
          base::StrCat("more than ", environment.max_stream_messages, " messages of less than ", large, " bytes");
      return End(base::WithReason(absl::ResourceExhaustedError(what), "MESSAGE_TOO_LARGE"));
    }
    const absl::StatusOr<bool> last = sink_->Take(message_);
    if (!last.ok()) return End(last.status());
    if (*last) return End(absl::OkStatus());
    ReadNext();
  }
  // Ends the stream, even if its client is silent.
  void Stop(const absl::Status& why, bool lost) {
    {
      base::MutexLock lock(mutex_);
      if (!stopped_.ok() || why.ok()) return;
      stopped_ = why;
      lost_ = lost;
      if (turn_ != Turn::kClient) return;  // a worker processes a message and checks stopped_ afterwards
      turn_ = Turn::kStop;
    }
    // End on a worker, because removing files may block.
    call_.environment().workers.Run([self = this->shared_from_this()] { self->EndStopped(); },
                                    auth::FairnessKey(call_.principal()));
  }
  void EndStopped() {
    absl::Status why;
    bool lost = false;
    {
      base::MutexLock lock(mutex_);
      why = stopped_;
      lost = lost_;
    }
    if (lost) sink_->Lost();
    End(why);
  }
  absl::Status TooOld() const {
    return absl::DeadlineExceededError(
        base::StrCat("the stream is older than ", absl::FormatDuration(call_.environment().max_stream_age)));
  }
  // Destroys the sink before the answer. So the files that the sink removes are gone, and the client can retry at once.
  void End(const absl::Status& status) {
    sink_.reset();
    this->Finish(call_.End(status));
  }
  void OnCancel() override { call_.Cancel(); }
  void OnDone() override {
    const std::shared_ptr<UploadReactor> last = std::move(self_);  // may destroy this object
  }

  Call call_;
  std::unique_ptr<UploadSink<Request>> sink_;
  Request message_;
  std::int64_t num_messages_ = 0;
  base::Mutex mutex_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kWorker;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);  // why the stream must end; OK: it continues
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<UploadReactor> self_;
  grpc::Alarm timer_;
};

}  // namespace nibble::rpc
