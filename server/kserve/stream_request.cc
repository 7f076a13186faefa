#include "server/kserve/stream_request.h"

#include <atomic>
#include <optional>
#include <utility>

#include "server/kserve/infer_answer.h"
#include "server/kserve/infer_unary.h"

namespace nibble::kserve {

namespace {

using inference::ModelInferResponse;

// Counts the end of a request. Sends the last responses of one that succeeded. Returns the status for the client.
absl::Status EndOf(RequestOwner& owner, const InferCall& call, const grpc::Status& status, absl::Duration began,
                   const InferAnswer& answer, ModelInferResponse last) {
  base::Clock& clock = owner.environment().clock;
  const absl::Duration took = clock.Monotonic() - began;
  if (!status.ok()) {
    absl::Status ended = FromInner(status, call.sampling);
    owner.statistics().Failed(call.request.model(), ended.code(), took);
    return ended;
  }
  owner.statistics().Succeeded(
      call.request.model(),
      {.began = clock.Now() - took, .took = took, .queued = answer.queued(), .computed = answer.computed()});
  SetFinal(last, !call.empty_final);
  if (absl::Status size = CheckSize(last, owner.environment().max_send_bytes); !size.ok()) return size;
  owner.Push(std::move(last));
  if (!call.empty_final) return absl::OkStatus();
  ModelInferResponse empty = answer.Empty();
  SetFinal(empty, true);
  owner.Push(std::move(empty));
  return absl::OkStatus();
}

// A request whose responses are a stream.
class StreamedRequest final : public grpc::ClientReadReactor<v1::GenerateReply>, public RunningRequest {
 public:
  StreamedRequest(std::shared_ptr<RequestOwner> owner, InferCall call)
      : owner_(std::move(owner)),
        call_(std::move(call)),
        answer_(call_),
        began_(owner_->environment().clock.Monotonic()) {}

  void Begin() override {
    owner_->identity().AddTo(context_);
    generate_.mutable_request()->Swap(&call_.request);
    call_.request.set_model(generate_.request().model());
    owner_->stubs().inference->async()->GenerateStream(&context_, &generate_, this);
    StartRead(&reply_);
    StartCall();
  }
  void Cancel() override { context_.TryCancel(); }
  void Resume() override {
    if (!paused_.exchange(false)) return;
    StartRead(&reply_);
    RemoveHold();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    auto response = answer_.Take(reply_);
    if (!response.has_value()) return StartRead(&reply_);
    SetFinal(*response, false);
    if (owner_->Push(*std::move(response))) return StartRead(&reply_);
    AddHold();  // so that OnDone() waits for Resume(), which runs outside this reactor's callbacks
    paused_ = true;
    if (owner_->HasSpace()) Resume();  // the client took responses meanwhile
  }
  void OnDone(const grpc::Status& status) override {
    owner_->Ended(this, call_, EndOf(*owner_, call_, status, began_, answer_, answer_.Ended()));
    delete this;
  }

  const std::shared_ptr<RequestOwner> owner_;
  InferCall call_;
  InferAnswer answer_;
  const absl::Duration began_;  // monotonic
  grpc::ClientContext context_;
  v1::GenerateStreamRequest generate_;
  v1::GenerateReply reply_;
  std::atomic<bool> paused_{false};
};

// A request with one response.
class WholeRequest final : public RunningRequest {
 public:
  WholeRequest(std::shared_ptr<RequestOwner> owner, InferCall call)
      : owner_(std::move(owner)), call_(std::move(call)), began_(owner_->environment().clock.Monotonic()) {}

  void Begin() override {
    owner_->identity().AddTo(context_);
    owner_->stubs().inference->async()->Generate(&context_, &call_.request, &response_,
                                                 [this](const grpc::Status& status) { End(status); });
  }
  void Cancel() override { context_.TryCancel(); }
  void Resume() override {}

 private:
  void End(const grpc::Status& status) {
    InferAnswer answer(call_);
    ModelInferResponse whole = status.ok() ? answer.Whole(response_) : ModelInferResponse();
    owner_->Ended(this, call_, EndOf(*owner_, call_, status, began_, answer, std::move(whole)));
    delete this;
  }

  const std::shared_ptr<RequestOwner> owner_;
  InferCall call_;
  const absl::Duration began_;  // monotonic
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
};

}  // namespace

std::unique_ptr<RunningRequest> MakeRequest(std::shared_ptr<RequestOwner> owner, InferCall call) {
  if (call.stream) return std::make_unique<StreamedRequest>(std::move(owner), std::move(call));
  return std::make_unique<WholeRequest>(std::move(owner), std::move(call));
}

}  // namespace nibble::kserve
