// One call of a unary method for a request.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/openai/api_error.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

inline http::Reply JsonReply(std::string body) {
  return {.fields = {{"Content-Type", "application/json"}}, .body = std::move(body)};
}

// Sends `request` by `invoke(context, request, response, done)`, which starts a call of an asynchronous stub, and gives
// the response to `on_ok`, on one of gRPC's threads. An error is the exchange's answer. If the client goes, cancels the
// call. `error_of` makes the answer of an error.
template <typename Response, typename Request, typename Invoke>
void CallUnary(
    // NOLINTNEXTLINE(performance-unnecessary-value-param): clang-tidy does not see the move in the template
    std::shared_ptr<Incoming> incoming, Request request, Invoke invoke,
    std::function<void(const std::shared_ptr<Incoming>&, Response&)> on_ok,
    std::function<ApiError(const grpc::Status&)> error_of = [](const grpc::Status& status) {
      return FromStatus(status);
    }) {
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
  state->incoming->exchange->Watch([] {},
                                   [weak = std::weak_ptr<State>(state)] {
                                     if (const auto alive = weak.lock()) alive->context.TryCancel();
                                   });
  invoke(&state->context, &state->request, &state->response,
         [state, on_ok = std::move(on_ok), error_of = std::move(error_of)](const grpc::Status& status) {
           if (status.ok()) return on_ok(state->incoming, state->response);
           state->incoming->exchange->Answer(ToReply(error_of(status)));
         });
}

}  // namespace nibble::openai
