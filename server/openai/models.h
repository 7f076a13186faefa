// The models of the server: GET /v1/models and /v1/models/{model}.
#pragma once
#include <memory>
#include <string>

#include "server/openai/inner_calls.h"

namespace nibble::openai {

// Answers with all models. The stubs must outlive the calls.
void ListModels(std::shared_ptr<Incoming> incoming, const Stubs& stubs);
void GetModel(std::shared_ptr<Incoming> incoming, const std::string& name, const Stubs& stubs);
void DeleteModel(std::shared_ptr<Incoming> incoming, const std::string& name, const Stubs& stubs);

}  // namespace nibble::openai
