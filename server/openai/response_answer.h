// The answer to a request of /v1/responses as JSON of OpenAI's API: whole, or as the events of a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/openai/answer_form.h"
#include "server/openai/response_request.h"
#include "server/openai/response_store.h"

namespace nibble::openai {

struct ResponseKeeping {
  ResponseStore* store = nullptr;  // nullptr: the response is not kept
  std::string owner{};
  std::shared_ptr<const Turn> previous{};
};

// Puts the response into the store before its last event. A response that fails is not kept.
class ResponseAnswer final : public AnswerForm {
 public:
  // Takes all but `generate` of the call.
  ResponseAnswer(ResponseCall call, ResponseKeeping keeping, absl::Time created);

  std::string Take(std::size_t prompt, const v1::GenerateReply& reply) override;
  std::size_t num_bytes() const override {
    const std::size_t once = text_.size() + logprobs_.size() + new_logprobs_.size() + call_bytes_;
    return call_.generate.stream ? kTimesInLastEvents * once : once;
  }
  std::string LastEvents() override;
  std::string Whole() override;
  std::string ErrorEvents(const ApiError& error) override;

 private:
  // The last events of a stream have all of it again: as text, part, item and response.
  static constexpr std::size_t kTimesInLastEvents = 4;

  // `fields`: the event's JSON after its type and number, beginning with a comma.
  std::string Event(std::string_view type, std::string_view fields);
  std::string Begun();
  std::string Delta(const v1::GenerateDelta& delta);
  std::string TextDelta(const std::string& text);
  std::string MessageDone();
  std::string CallEvents();
  std::string Finish(const v1::GenerateFinish& finish);
  std::string Place() const;
  std::string PartJson() const;
  std::string MessageJson(std::string_view status) const;
  // The response before and after the elements of `output`.
  std::string Head(std::string_view status) const;
  std::string Tail(bool stored) const;
  std::string CallId(int index) const;
  std::string CallJson(int index, std::string_view status) const;
  std::vector<ResponseItem> Output() const;
  std::string Whole(bool stored) const;
  std::string EndStatus() const { return incomplete_ ? "incomplete" : "completed"; }
  bool Keep();

  ResponseCall call_;
  const ResponseKeeping keeping_;
  const std::int64_t created_;
  const bool with_logprobs_;
  const std::size_t num_input_;  // items
  const std::string message_id_;
  std::string echo_;  // members of the response, each after a comma
  std::string fingerprint_;
  std::string text_;
  std::string logprobs_;      // elements of an array, each after a comma
  std::string new_logprobs_;  // of tokens whose text has not come
  google::protobuf::RepeatedPtrField<v1::ToolCall> calls_;
  std::size_t call_bytes_ = 0;
  std::string error_ = "null";
  bool started_ = false;  // the first event was sent
  bool begun_ = false;    // the message is in `output`
  bool incomplete_ = false;
  bool has_usage_ = false;
  std::int64_t completed_ = 0;
  std::int64_t input_tokens_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::int64_t output_tokens_ = 0;
  std::int64_t sequence_ = 0;  // number of the next event
};

}  // namespace nibble::openai
