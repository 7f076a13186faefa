#pragma once
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/model_loads.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

// What can be said before the model is there.
absl::Status CheckScore(const v1::ScoreRequest& request);
// Hands a Score request to the model's engine, in the batch with everything else; `call` or `stream` ends when it is answered.
// `rendered`: the result of Rendered (inference_input.h). Not OK: the engine did not take it, and the call is still to be ended. The unary form:
// ResourceExhausted (MESSAGE_TOO_LARGE) where its answer may be larger than a message.
absl::Status SubmitScore(Edge& edge, std::shared_ptr<const serve::Resident> resident, const v1::ScoreRequest& request, std::string rendered,
                         UnaryCall* call, v1::ScoreResponse* response);
absl::Status SubmitScore(Edge& edge, std::shared_ptr<const serve::Resident> resident, const v1::ScoreRequest& request, std::string rendered,
                         std::shared_ptr<StreamReactor<v1::ScoreReply>> stream);

}  // namespace nibble::rpc
