// Turns the engine's callbacks into GenerateReply messages: one start, pieces of the prompt's logprobs, deltas, one
// finish per output, one usage. An error ends the messages early; the usage is then in the status (EndOf).
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/request_ids.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

struct AnswerContext {
  CallEnvironment& environment;
  std::shared_ptr<const serve::Resident> resident;  // keeps the model while the request runs
  GenerateOptions options;
  std::string request_id;
  std::string echo_text;             // "" without echo
  std::vector<std::int32_t> prompt;  // kept for its length and for prompt_logprobs
  std::unique_ptr<RequestIds::Entry> entry;
};

// Maps the engine's final status to the caller's status. An error after the request began (`started`) has the Usage in
// its details, because the caller pays for generated tokens; a cancel or a deadline has the stage and the token count.
absl::Status EndOf(const absl::Status& status, bool started, const serve::Usage& usage);

// Called from the engine's thread.
class AnswerSink : public serve::ResponseSink {
 public:
  explicit AnswerSink(AnswerContext context) : context_(std::move(context)) { ++context_.environment.live_answers; }
  // Releases the model on a worker: the engine's own thread must not destroy the engine.
  ~AnswerSink() override { LetGo(); }

  void OnStart(double queue_ms) final {
    started_ = true;
    start_.mutable_start()->set_queue_ms(queue_ms);
  }
  void OnPromptLogprobs(std::span<const serve::TokenLogprob> logprobs) final;
  void OnDelta(int index, std::string_view text, std::span<const serve::TokenLogprob> tokens) final;
  void OnOutputEnd(const serve::OutputEnd& end) final;
  void OnFinish(const serve::Finish& finish) final;

 protected:
  virtual void Emit(v1::GenerateReply& reply) = 0;
  // Replaces the engine's status if it does not name the cause.
  virtual absl::Status Why(const absl::Status& status) const { return status; }
  virtual void End(const absl::Status& status) = 0;
  int num_outputs() const { return context_.options.request.n; }
  // Upper bound of the echo messages that have not been sent yet.
  std::size_t num_echo_messages() const;

 private:
  void Begin();
  void BeginOutputs();
  void LetGo();
  text::ToolParser& ParserOf(int index) { return parsers_.try_emplace(index, *context_.options.tools).first->second; }
  // Sets the text of `delta`, and the calls in it. Sends all of a text that is too large for one message, except its
  // last piece, in messages of their own.
  void SetText(text::ToolParser::Result text, v1::GenerateDelta& delta);

  AnswerContext context_;
  v1::GenerateReply start_;
  bool started_ = false;                     // by the engine
  bool begun_ = false;                       // the start message was sent
  bool echoed_ = false;                      // the echo was sent
  std::int32_t scored_ = 0;                  // prompt tokens whose logprobs were sent
  std::map<int, std::int32_t> last_token_;   // by output
  std::map<int, std::string> last_text_;     // by output, with tools: text held back until the end
  std::map<int, text::ToolParser> parsers_;  // by output, with tools
};

}  // namespace nibble::rpc
