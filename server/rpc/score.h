#pragma once
#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/model_loads.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

// What can be said before the model is there.
absl::Status CheckScore(const v1::ScoreRequest& request);
// Hands a Score request to the model's engine, in the batch with everything else; `call` ends when it is answered. Not OK: the
// model was not loaded or the engine did not take it, and the call is still to be ended.
absl::Status SubmitScore(Edge& edge, ModelLoads::Loaded loaded, const v1::ScoreRequest& request, UnaryCall* call,
                         v1::ScoreResponse* response);

}  // namespace nibble::rpc
