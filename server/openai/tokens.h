// POST /tokenize and /detokenize, which are endpoints of vLLM's server.
#pragma once
#include <memory>

#include "server/base/json.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

// Errors of the body are the answer. The stubs must outlive the calls.
void Tokenize(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);
void Detokenize(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);

}  // namespace nibble::openai
