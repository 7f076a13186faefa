// POST /v1/files: a form whose file becomes a dataset while it arrives.
#pragma once
#include <memory>

#include "server/openai/inner_calls.h"

namespace nibble::openai {

// Reads the body. The stubs must outlive the call; errors of the form are the answer.
void UploadFile(std::shared_ptr<Incoming> incoming, const Stubs& stubs);

}  // namespace nibble::openai
