#include "server/rpc/operations_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "server/base/status_macros.h"
#include "server/rpc/operation_proto.h"
#include "server/rpc/page.h"
#include "server/rpc/time.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace longrunning = google::longrunning;

namespace {

// Callers below the role train may cancel only their own operations (VerifyModel); others may cancel all that they see.
operations::OperationViewer ViewerOf(const Call& call) {
  const auth::Principal& principal = call.principal();
  operations::OperationViewer viewer{.tenant = principal.tenant};
  if (principal.role < auth::Role::kTrain) viewer.only_own = auth::OwnerOf(principal);
  return viewer;
}

constexpr absl::Duration kLongestWait = absl::Minutes(10);
constexpr absl::Duration kBeforeDeadline = absl::Milliseconds(200);  // for the answer to reach the client

// One WaitOperation. The operation, the timer or the client ends it, whichever comes first.
class Wait : public std::enable_shared_from_this<Wait> {
 public:
  Wait(operations::OperationTable& operations, std::string name, UnaryCall* call, longrunning::Operation* response)
      : operations_(operations),
        name_(std::move(name)),
        viewer_(ViewerOf(call->call())),
        call_(call),
        response_(response) {}

  void Begin(absl::Duration timeout) {
    auto self = shared_from_this();
    call_->OnCancelled([self] { self->Cancelled(); });
    // Capture a weak pointer, because a shared one would be a cycle: gRPC keeps the function as long as the alarm,
    // which is a member of this object. The call and the operation own this object.
    timer_.Set(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout), [weak = weak_from_this()](bool) {
      if (const auto still_there = weak.lock(); still_there != nullptr) still_there->Timeout();
    });
    const auto handle =
        operations_.OnEnd(name_, [self](const operations::Operation& operation) { self->Answer(operation); }, viewer_);
    if (!handle.ok()) {
      if (Take()) call_->Done(handle.status());
    } else {
      handle_ = *handle;
    }
    if (!Taken()) return;
    // The wait may have ended before handle_ was set. Then nothing has released the handle yet.
    timer_.Cancel();
    Forget();
  }

 private:
  void Cancelled() {
    const Call& call = call_->call();
    const absl::Status why = call.StillWanted(call.deadline());
    if (Take()) call_->Done(why);
    timer_.Cancel();
    Forget();
  }
  void Timeout() {
    if (const auto operation = operations_.Get(name_, viewer_); operation.ok()) {
      Answer(*operation);
    } else if (Take()) {
      call_->Done(operation.status());
    }
    Forget();
  }
  // Releases a finished wait; otherwise it would be kept until the operation ends, perhaps for hours.
  void Forget() {
    if (const std::uint64_t handle = handle_; handle != 0) operations_.ForgetOnEnd(name_, handle);
  }
  void Answer(const operations::Operation& operation) {
    if (!Take()) return;
    *response_ = ToProto(operation);
    call_->Done(absl::OkStatus());
    timer_.Cancel();
  }
  bool Take() { return !taken_.exchange(true); }
  bool Taken() const { return taken_; }

  operations::OperationTable& operations_;
  const std::string name_;
  const operations::OperationViewer viewer_;
  UnaryCall* const call_;
  longrunning::Operation* const response_;
  std::atomic<bool> taken_{false};
  std::atomic<std::uint64_t> handle_{0};
  grpc::Alarm timer_;
};

}  // namespace

grpc::ServerUnaryReactor* OperationsService::ListOperations(grpc::CallbackServerContext* context,
                                                            const longrunning::ListOperationsRequest* request,
                                                            longrunning::ListOperationsResponse* response) {
  return Unary(
      environment_, context, "google.longrunning.Operations/ListOperations", [&](const Call& call) -> absl::Status {
        if (!request->filter().empty()) return Unimplemented("ListOperationsRequest.filter");
        // Only one list exists.
        if (!request->name().empty() && request->name() != "operations")
          return Unimplemented("ListOperationsRequest.name");
        NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(request->page_size()));
        NIBBLE_ASSIGN_OR_RETURN(const std::string after, KeyOfToken(request->page_token()));
        PageBytes bytes(environment_.max_page_bytes);
        // Ask for one more than the page shows, to know whether another page follows.
        for (const auto& listed : operations_.List(ViewerOf(call), after, static_cast<std::size_t>(size) + 1)) {
          longrunning::Operation one = ToProto(*listed);
          if (response->operations_size() == size || !bytes.Take(one.ByteSizeLong())) {
            response->set_next_page_token(TokenAfter(response->operations().rbegin()->name()));
            break;
          }
          *response->add_operations() = std::move(one);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OperationsService::GetOperation(grpc::CallbackServerContext* context,
                                                          const longrunning::GetOperationRequest* request,
                                                          longrunning::Operation* response) {
  return Unary(environment_, context, "google.longrunning.Operations/GetOperation",
               [&](const Call& call) -> absl::Status {
                 NIBBLE_ASSIGN_OR_RETURN(const operations::Operation operation,
                                         operations_.Get(request->name(), ViewerOf(call)));
                 *response = ToProto(operation);
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* OperationsService::DeleteOperation(grpc::CallbackServerContext* context,
                                                             const longrunning::DeleteOperationRequest* request,
                                                             google::protobuf::Empty*) {
  return UnaryOnWorker(environment_, context, "google.longrunning.Operations/DeleteOperation",
                       [=, this](const Call& call) { return operations_.Delete(request->name(), ViewerOf(call)); });
}

grpc::ServerUnaryReactor* OperationsService::CancelOperation(grpc::CallbackServerContext* context,
                                                             const longrunning::CancelOperationRequest* request,
                                                             google::protobuf::Empty*) {
  return Unary(environment_, context, "google.longrunning.Operations/CancelOperation",
               [&](const Call& call) { return operations_.Cancel(request->name(), ViewerOf(call)); });
}

grpc::ServerUnaryReactor* OperationsService::WaitOperation(grpc::CallbackServerContext* context,
                                                           const longrunning::WaitOperationRequest* request,
                                                           longrunning::Operation* response) {
  auto* call = new UnaryCall(environment_, context, "google.longrunning.Operations/WaitOperation");
  if (!call->call().admitted().ok()) {
    call->Done(call->call().admitted());
    return call;
  }
  absl::Duration timeout = request->has_timeout() ? FromProto(request->timeout()) : kLongestWait;
  timeout =
      std::min({timeout, kLongestWait, call->call().deadline() - environment_.clock.Monotonic() - kBeforeDeadline});
  std::make_shared<Wait>(operations_, request->name(), call, response)->Begin(std::max(timeout, absl::ZeroDuration()));
  return call;
}

}  // namespace nibble::rpc
