// The answer to a GenerateCall as JSON of OpenAI's API: whole, or as the events of a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/openai/answer_form.h"
#include "server/openai/generate_request.h"

namespace nibble::openai {

// {"token", "logprob", "bytes", "top_logprobs"}: a token of a chat.
std::string ChatLogprob(const v1::TokenLogprob& token);

// "fp_" and the beginning of the digest of the weights.
std::string FingerprintOf(const v1::GenerateStart& start);

// Choice i of prompt p has the index p * n + i.
class GenerateAnswer final : public AnswerForm {
 public:
  // `call` must outlive this object. `request_id` becomes a part of the answer's id.
  GenerateAnswer(const GenerateCall& call, const std::string& request_id, absl::Time created);

  std::string Take(std::size_t prompt, const v1::GenerateReply& reply) override;
  std::size_t num_bytes() const override { return num_bytes_; }
  std::string LastEvents() override;
  std::string Whole() override;
  std::string ErrorEvents(const ApiError& error) override { return ToEvent(error); }

 private:
  // Logprobs as JSON: elements of arrays, each after a comma.
  struct Logprobs {
    std::string content;  // of a chat
    std::string tokens, token_logprobs, top_logprobs, text_offset;
  };
  struct Choice {
    std::string text;
    google::protobuf::RepeatedPtrField<v1::ToolCall> tool_calls;
    Logprobs logprobs;
    std::int64_t num_characters = 0;  // of the tokens so far
    std::string finish_reason;
    bool begun = false;  // its first event was sent
  };

  Choice& ChoiceOf(std::size_t prompt, std::int32_t index);
  std::string Begun(std::size_t index);
  void AddLogprob(const v1::TokenLogprob& token, Choice& choice, Logprobs& out) const;
  std::string LogprobsJson(const Logprobs& logprobs) const;
  std::string Event(std::size_t index, const std::string& text, const std::string& logprobs,
                    const std::string& finish_reason) const;
  // The events of a piece of choice `index`.
  std::string DeltaEvents(std::size_t index, const v1::GenerateDelta& delta, const std::string& logprobs) const;
  void MakePrefix(const std::string& fingerprint);
  std::string UsageJson() const;

  const GenerateCall& call_;
  const std::string id_;
  const std::int64_t created_;
  std::string prefix_;  // of the answer, or of every event: all fields before the choices
  std::vector<Choice> choices_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t completion_tokens_ = 0;
  std::size_t num_bytes_ = 0;
};

}  // namespace nibble::openai
