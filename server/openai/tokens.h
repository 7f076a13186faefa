// POST /tokenize and /detokenize and GET /tokenizer_info, which are endpoints of vLLM's server.
#pragma once
#include <memory>

#include "nibble/v1/inference_service.pb.h"
#include "server/base/json.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

// Errors of the body are the answer. The stubs must outlive the calls.
void Tokenize(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);
void Detokenize(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);
void TokenizerInfo(std::shared_ptr<Incoming> incoming, const Stubs& stubs);

// The answer of /tokenizer_info: the fields of tokenizer_config.json, the template, and the class.
base::Json TokenizerInfoJson(const v1::GetTokenizerConfigResponse& response);

}  // namespace nibble::openai
