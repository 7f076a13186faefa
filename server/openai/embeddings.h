// POST /v1/embeddings.
#pragma once
#include <memory>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/base/json.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

struct EmbeddingsCall {
  v1::EmbedRequest request;
  bool base64 = false;  // vectors as base64 of f32, little endian
};
// Errors: InvalidArgument (FIELD_VIOLATION) names the client's field.
absl::StatusOr<EmbeddingsCall> ParseEmbeddings(const base::Json& body);
std::string EmbeddingsJson(const EmbeddingsCall& call, const v1::EmbedResponse& response);

// Errors of the body are the answer. The stubs must outlive the call.
void Embed(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);

}  // namespace nibble::openai
