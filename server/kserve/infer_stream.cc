#include "server/kserve/infer_stream.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"
#include "server/kserve/infer_answer.h"
#include "server/kserve/infer_request.h"
#include "server/kserve/stream_request.h"
#include "server/rpc/slow_reader.h"
#include "server/rpc/status.h"

namespace nibble::kserve {

namespace {

using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr char kMethod[] = "inference.GRPCInferenceService/ModelStreamInfer";
// Metadata by which a client of Triton asks that the first error ends the stream with its status.
constexpr char kEndOnErrorKey[] = "triton_grpc_error";

bool EndsOnError(const grpc::CallbackServerContext& context) {
  const auto it = context.client_metadata().find(kEndOnErrorKey);
  return it != context.client_metadata().end() && it->second == "true";
}

// Thread-safe. Lives until gRPC is done with the call and the last request has ended.
class Stream final : public InferStream::Reactor, public RequestOwner, public std::enable_shared_from_this<Stream> {
 public:
  Stream(rpc::CallEnvironment& environment, grpc::CallbackServerContext* context, std::shared_ptr<const Stubs> stubs,
         Statistics& statistics)
      : call_(environment, context, rpc::CallType::kBidiStream, kMethod),
        identity_(call_, *context),
        ends_on_error_(EndsOnError(*context)),
        stubs_(std::move(stubs)),
        statistics_(statistics) {}

  void Begin();

  rpc::CallEnvironment& environment() const override { return call_.environment(); }
  const ClientIdentity& identity() const override { return identity_; }
  const Stubs& stubs() const override { return *stubs_; }
  Statistics& statistics() const override { return statistics_; }
  bool Push(ModelInferResponse response) override;
  bool HasSpace() const override {
    base::MutexLock lock(mutex_);
    return stopped_ || HasSpaceLocked();
  }
  void Ended(RunningRequest* request, const InferCall& call, const absl::Status& status) override;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override {
    call_.Cancel();
    Stop(absl::CancelledError("cancelled by the client, or its deadline passed"), /*drop=*/true);
  }
  void OnDone() override;

  void Accept(const inference::ModelInferRequest& request);
  void PushError(const std::string& id, const std::string& model, const absl::Status& status);
  void Queue(ModelStreamInferResponse message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasSpaceLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queue_.size() <= InferStream::kMaxQueued / 2;
  }
  // Cancels all requests and accepts no more. `drop`: also drops the responses that wait.
  void Stop(absl::Status status, bool drop);
  // Starts the next read and write, or finishes.
  void Advance();
  void EndAtDrain();
  // Ends the stream (SLOW_CONSUMER) if its client has taken no message for CallEnvironment::slow_reader, and cuts the
  // call if it does not take the end either.
  void LookAtReader();

  rpc::Call call_;
  const ClientIdentity identity_;
  const bool ends_on_error_;
  const std::shared_ptr<const Stubs> stubs_;
  Statistics& statistics_;
  inference::ModelInferRequest request_;  // used by one read at a time

  mutable base::Mutex mutex_;
  std::set<RunningRequest*> running_ ABSL_GUARDED_BY(mutex_);           // a request in the set has not been deleted
  std::deque<ModelStreamInferResponse> queue_ ABSL_GUARDED_BY(mutex_);  // while writing_, the front is being written
  std::size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration write_began_ ABSL_GUARDED_BY(mutex_);  // of the last write, monotonic
  bool reads_done_ ABSL_GUARDED_BY(mutex_) = false;     // the client sends no more requests
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;      // a request was read and is not in running_ yet
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;       // no request is accepted
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;        // nor is a response queued
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> self_;  // keeps this object until OnDone
  std::uint64_t drain_ = 0;       // set once, by Begin()
  grpc::Alarm watch_;
};

void Stream::Begin() {
  self_ = shared_from_this();
  if (!call_.admitted().ok()) return Stop(call_.admitted(), /*drop=*/true);
  if (stubs_ == nullptr) return Stop(NotConnected(), /*drop=*/true);
  Advance();
  LookAtReader();
  drain_ = environment().drain.Add([weak = weak_from_this()] {
    if (const auto alive = weak.lock()) alive->EndAtDrain();
  });
}

void Stream::EndAtDrain() {
  {
    base::MutexLock lock(mutex_);
    if (stopped_ || reads_done_) return;
    draining_ = true;
    status_ = base::WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING");
  }
  Advance();
}

void Stream::LookAtReader() {
  const absl::Duration patience = environment().slow_reader;
  bool stuck;
  {
    base::MutexLock lock(mutex_);
    if (finished_) return;
    stuck = writing_ && environment().clock.Monotonic() - write_began_ >= patience;
    if (stuck && stopped_) return call_.Cut();  // the context is valid until OnDone
  }
  if (stuck) Stop(rpc::ReadsTooSlowly(), /*drop=*/true);
  // Four looks per window, as in rpc/stream_reactor.h.
  watch_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience / 4),
             [weak = weak_from_this()](bool passed) {
               if (const auto alive = weak.lock(); passed && alive != nullptr) alive->LookAtReader();
             });
}

void Stream::OnReadDone(bool ok) {
  {
    base::MutexLock lock(mutex_);
    reads_done_ = !ok;
    accepting_ = ok;
  }
  if (ok) Accept(std::exchange(request_, {}));
  {
    // Not before: another thread could begin the next read, which overwrites request_.
    base::MutexLock lock(mutex_);
    reading_ = accepting_ = false;
  }
  Advance();
}

void Stream::Accept(const inference::ModelInferRequest& request) {
  environment().metrics.ClientRequest("kserve");
  absl::StatusOr<InferCall> call = ParseInfer(request, /*may_stream=*/true);
  if (!call.ok()) return PushError(request.id(), request.model_name(), call.status());
  std::unique_ptr<RunningRequest> made = MakeRequest(shared_from_this(), *std::move(call));
  {
    base::MutexLock lock(mutex_);
    if (stopped_) return;
    running_.insert(made.get());
  }
  made.release()->Begin();
}

void Stream::Queue(ModelStreamInferResponse message) {
  if (stopped_) return;
  queued_bytes_ += message.ByteSizeLong();
  queue_.push_back(std::move(message));
}

bool Stream::Push(ModelInferResponse response) {
  ModelStreamInferResponse message;
  message.mutable_infer_response()->Swap(&response);
  bool more;
  {
    base::MutexLock lock(mutex_);
    Queue(std::move(message));
    more = stopped_ || queue_.size() < InferStream::kMaxQueued;
  }
  Advance();
  return more;
}

void Stream::PushError(const std::string& id, const std::string& model, const absl::Status& status) {
  if (ends_on_error_) return Stop(status, /*drop=*/false);
  const std::string reason = base::Reason(status);
  ModelStreamInferResponse message;
  // ToGrpcStatus makes the text safe for clients.
  message.set_error_message(base::StrCat(reason.empty() ? rpc::CodeName(status.code()) : reason, ": ",
                                         rpc::ToGrpcStatus(status).error_message()));
  ModelInferResponse& response = *message.mutable_infer_response();
  response.set_id(id);
  response.set_model_name(model);
  SetFinal(response, true);
  base::MutexLock lock(mutex_);
  Queue(std::move(message));
}

void Stream::Ended(RunningRequest* request, const InferCall& call, const absl::Status& status) {
  if (!status.ok()) PushError(call.id, call.request.model(), status);
  {
    base::MutexLock lock(mutex_);
    running_.erase(request);
  }
  Advance();
}

void Stream::OnWriteDone(bool ok) {
  {
    base::MutexLock lock(mutex_);
    writing_ = false;
    queued_bytes_ -= queue_.front().ByteSizeLong();
    queue_.pop_front();
    if (HasSpaceLocked()) {
      for (RunningRequest* running : running_) running->Resume();
    }
  }
  if (!ok) Stop(absl::CancelledError("the client is gone"), /*drop=*/true);
  Advance();
}

void Stream::Stop(absl::Status status, bool drop) {
  {
    base::MutexLock lock(mutex_);
    if (!stopped_) status_ = std::move(status);
    stopped_ = true;
    if (drop) {
      queue_.resize(writing_ ? 1 : 0);  // gRPC still reads the message that is being written
      queued_bytes_ = writing_ ? queue_.front().ByteSizeLong() : 0;
    }
    for (RunningRequest* running : running_) {
      running->Resume();
      running->Cancel();
    }
  }
  Advance();
}

void Stream::Advance() {
  // Reads and writes begin under the lock, so that none begins after Finish(). Their callbacks run on other stacks.
  // Finish() may call OnDone() at once.
  grpc::Status end;
  const std::shared_ptr<Stream> self = shared_from_this();
  {
    base::MutexLock lock(mutex_);
    if (finished_) return;
    if (!writing_ && !queue_.empty()) {
      writing_ = true;
      write_began_ = environment().clock.Monotonic();
      StartWrite(&queue_.front());
    }
    const bool ends = stopped_ || draining_ || reads_done_;
    if (!ends && !reading_ && running_.size() < InferStream::kMaxRunning && queue_.size() < InferStream::kMaxQueued &&
        queued_bytes_ < environment().max_send_bytes) {
      reading_ = true;
      StartRead(&request_);
    }
    if (!ends || accepting_ || !running_.empty() || writing_) return;
    finished_ = true;
    end = call_.End(status_);
  }
  Finish(end);
}

void Stream::OnDone() {
  if (drain_ != 0) environment().drain.Remove(drain_);  // here, because a request may own this object for longer
  const std::shared_ptr<Stream> self = std::move(self_);
}

}  // namespace

InferStream::Reactor* InferStream::Begin(rpc::CallEnvironment& environment, grpc::CallbackServerContext* context,
                                         std::shared_ptr<const Stubs> stubs, Statistics& statistics) {
  const auto stream = std::make_shared<Stream>(environment, context, std::move(stubs), statistics);
  stream->Begin();
  return stream.get();
}

}  // namespace nibble::kserve
