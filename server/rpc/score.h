#pragma once
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/unary.h"
#include "server/serve/model_loads.h"

namespace nibble::rpc {

// Checks that need no model.
absl::Status CheckScore(const v1::ScoreRequest& request);
// Submits a Score request to the model's engine, which batches it with all other requests; ends `call` or `stream` with
// the answer. `rendered`: the result of Rendered (inference_input.h). After an error the engine does not have the
// request, and the caller must end the call. Errors: ResourceExhausted (MESSAGE_TOO_LARGE): the answer (unary form) or
// the logprobs of two tokens (stream) may exceed a message; InvalidArgument if the input has no tokens; those of
// PromptOf, Call::StillWanted and Engine::Submit.
absl::Status SubmitScore(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::ScoreRequest& request, const std::string& rendered, UnaryCall* call,
                         v1::ScoreResponse* response);
absl::Status SubmitScore(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::ScoreRequest& request, const std::string& rendered,
                         std::shared_ptr<StreamReactor<v1::ScoreReply>> stream);

}  // namespace nibble::rpc
