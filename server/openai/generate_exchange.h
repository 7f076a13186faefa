// Answers a GenerateCall by streams of the gRPC API.
#pragma once
#include <memory>

#include "server/openai/answer_form.h"
#include "server/openai/generate_request.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

// Runs the prompts of the call, several at a time, and gives their answer to the exchange. If the client goes, cancels
// them; the engine then frees their slots within one step. The bytes that the answer collects may be at most
// `max_answer_bytes`. `form`: of the answer; nullptr: GenerateAnswer. The stubs must outlive the calls.
void RunGenerate(std::shared_ptr<Incoming> incoming, GenerateCall call, const Stubs& stubs,
                 std::size_t max_answer_bytes, std::unique_ptr<AnswerForm> form = nullptr);

}  // namespace nibble::openai
