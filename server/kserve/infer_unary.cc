#include "server/kserve/infer_unary.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/kserve/infer_answer.h"

namespace nibble::kserve {

absl::Status CheckSize(const google::protobuf::Message& response, std::size_t max_bytes) {
  const std::size_t bytes = response.ByteSizeLong();
  if (bytes <= max_bytes) return absl::OkStatus();
  return base::WithReason(absl::ResourceExhaustedError(base::StrCat(
                              "the response has ", bytes, " bytes, more than the ", max_bytes, " of --max_send_bytes")),
                          "MESSAGE_TOO_LARGE", {{"need", std::to_string(bytes)}, {"max", std::to_string(max_bytes)}});
}

void RunInfer(std::shared_ptr<Incoming> incoming, InferCall call, Statistics& statistics,
              inference::ModelInferResponse* response) {
  const auto shared = std::make_shared<InferCall>(std::move(call));
  v1::GenerateRequest request = std::move(shared->request);
  shared->request.set_model(request.model());
  const auto stubs = incoming->stubs;
  CallInner<v1::GenerateResponse>(
      std::move(incoming), std::move(request),
      [stubs](auto... arguments) { stubs->inference->async()->Generate(arguments...); },
      [shared, &statistics, response](const std::shared_ptr<Incoming>& again, const grpc::Status& status,
                                      v1::GenerateResponse& whole) {
        const rpc::Call& client = again->call->call();
        const absl::Duration took = client.environment().clock.Monotonic() - client.began();
        if (!status.ok()) {
          const absl::Status ended = FromInner(status, shared->sampling);
          statistics.Failed(shared->request.model(), ended.code(), took);
          return again->call->Done(ended);
        }
        InferAnswer answer(*shared);
        *response = answer.Whole(whole);
        statistics.Succeeded(shared->request.model(), {.began = client.environment().clock.Now() - took,
                                                       .took = took,
                                                       .queued = answer.queued(),
                                                       .computed = answer.computed()});
        again->call->Done(CheckSize(*response, client.environment().max_send_bytes));
      });
}

}  // namespace nibble::kserve
