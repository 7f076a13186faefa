// The form of an answer to a GenerateCall.
#pragma once
#include <cstddef>
#include <string>

#include "nibble/v1/inference_service.pb.h"
#include "server/openai/api_error.h"

namespace nibble::openai {

// Takes the replies of the prompts' streams, each in order; replies of different prompts may alternate. One thread at a
// time.
class AnswerForm {
 public:
  virtual ~AnswerForm() = default;

  // For a stream, returns the events of this reply, or "". Otherwise collects the reply and returns "".
  virtual std::string Take(std::size_t prompt, const v1::GenerateReply& reply) = 0;
  // Bytes collected so far, about as many as the answer will have.
  virtual std::size_t num_bytes() const = 0;

  // Exactly one of the following is called, once. The first two come after the last reply of all prompts.
  virtual std::string LastEvents() = 0;  // of a stream
  virtual std::string Whole() = 0;       // the answer without a stream
  // The last events of a stream that has failed.
  virtual std::string ErrorEvents(const ApiError& error) = 0;
};

}  // namespace nibble::openai
