#pragma once
#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/unary.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

// Hands a Score request to the model's engine, in the batch with everything else; `call` ends when it is answered. Not OK: the
// engine did not take it, and the call is still to be ended.
absl::Status SubmitScore(Edge& edge, serve::ModelManager& models, const v1::ScoreRequest& request, UnaryCall* call,
                         v1::ScoreResponse* response);

}  // namespace nibble::rpc
