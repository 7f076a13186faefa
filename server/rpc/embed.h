#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/unary.h"
#include "server/serve/model_loads.h"

namespace nibble::rpc {

inline constexpr int kMaxEmbedded = 2048;  // texts of a call

// Checks that need no model. Errors: InvalidArgument (FIELD_VIOLATION, PROMPT_TOO_LONG).
absl::Status CheckEmbed(const v1::EmbedRequest& request, std::size_t max_text_bytes);
// Number of bytes of all texts.
std::size_t TextBytes(const v1::EmbedRequest& request);

// Encodes the texts, and gives them to the model's engine, several at a time; ends `call` with the answer. After an
// error the engine has no request, and the caller must end the call. Errors: ResourceExhausted (MESSAGE_TOO_LARGE): the
// answer would exceed a message; InvalidArgument: a text has no tokens or too many; those of Call::StillWanted and
// Engine::Submit.
absl::Status SubmitEmbed(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::EmbedRequest& request, absl::Duration deadline, UnaryCall* call,
                         v1::EmbedResponse* response);

}  // namespace nibble::rpc
