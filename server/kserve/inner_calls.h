// Calls of the gRPC API inside the process, for a client of this service.
#pragma once
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "google/longrunning/operations.grpc.pb.h"
#include "google/rpc/status.pb.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "nibble/v1/model_service.grpc.pb.h"
#include "server/auth/authority.h"
#include "server/kserve/infer_request.h"
#include "server/rpc/unary.h"

namespace nibble::kserve {

struct Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : inference(v1::InferenceService::NewStub(channel)),
        models(v1::ModelService::NewStub(channel)),
        operations(google::longrunning::Operations::NewStub(channel)) {}
  const std::unique_ptr<v1::InferenceService::Stub> inference;
  const std::unique_ptr<v1::ModelService::Stub> models;
  const std::unique_ptr<google::longrunning::Operations::Stub> operations;
};

// Error of a call that arrives before KServeService::Connect().
inline absl::Status NotConnected() { return absl::UnavailableError("the server is starting"); }

// Metadata (auth::Forward) and deadline of a call for the client of another call.
class ClientIdentity {
 public:
  ClientIdentity(const rpc::Call& call, const grpc::CallbackServerContext& context);
  void AddTo(grpc::ClientContext& context) const;

 private:
  auth::Caller caller_;
  std::string request_id_;
  std::string forward_secret_;
  std::chrono::system_clock::time_point deadline_;
};

// The error of an inner call for the client: the reason, the metadata and the details stay, and a field has the
// client's name. `sampling`: InferCall::sampling.
absl::Status FromInner(const grpc::Status& status, std::string_view sampling = kSamplingTensor);
absl::Status FromInner(const google::rpc::Status& status, std::string_view sampling = kSamplingTensor);

// A unary call of a client. Whoever holds it must end it once, by call->Done().
struct Incoming {
  rpc::UnaryCall* call;
  ClientIdentity identity;
  std::shared_ptr<const Stubs> stubs;
};

// Sends `request` by `invoke(context, request, response, done)`, which starts a call of an asynchronous stub, and gives
// its status and the response to `then`, on one of gRPC's threads. Cancelled with the client's call.
template <typename Response, typename Request, typename Invoke>
// NOLINTNEXTLINE(performance-unnecessary-value-param): clang-tidy does not see the move in the template
void CallInner(std::shared_ptr<Incoming> incoming, Request request, Invoke invoke,
               std::function<void(const std::shared_ptr<Incoming>&, const grpc::Status&, Response&)> then) {
  struct State {
    std::shared_ptr<Incoming> incoming;
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  const auto state = std::make_shared<State>();
  state->incoming = std::move(incoming);
  state->request = std::move(request);
  state->incoming->identity.AddTo(state->context);
  // Before the start, after which the client's call may end at any time.
  state->incoming->call->OnCancelled([weak = std::weak_ptr<State>(state)] {
    if (const auto alive = weak.lock()) alive->context.TryCancel();
  });
  invoke(
      &state->context, &state->request, &state->response,
      [state, then = std::move(then)](const grpc::Status& status) { then(state->incoming, status, state->response); });
}

// As above, but an error ends the client's call.
template <typename Response, typename Request, typename Invoke>
void CallUnary(std::shared_ptr<Incoming> incoming, Request request, Invoke invoke,
               std::function<void(const std::shared_ptr<Incoming>&, Response&)> on_ok) {
  CallInner<Response>(std::move(incoming), std::move(request), std::move(invoke),
                      [on_ok = std::move(on_ok)](const std::shared_ptr<Incoming>& again, const grpc::Status& status,
                                                 Response& response) {
                        if (status.ok()) return on_ok(again, response);
                        again->call->Done(FromInner(status));
                      });
}

}  // namespace nibble::kserve
