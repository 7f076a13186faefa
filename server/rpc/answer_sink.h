// From the engine's callbacks to GenerateReply messages: one start, pieces of the prompt's logprobs, deltas, one finish, one usage.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nibble/v1/inference_service.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/request_ids.h"
#include "server/serve/model_manager.h"

namespace nibble::rpc {

struct AnswerContext {
  Edge& edge;
  std::shared_ptr<const serve::Resident> resident;  // keeps the model while the request runs
  GenerateOptions options;
  std::string request_id;
  std::string echo_text;               // "" without echo
  std::vector<std::int32_t> prompt;    // kept for prompt_logprobs
  std::unique_ptr<RequestIds::Entry> entry;
};

// The engine's end of a request as its caller hears it: of one that was cut, stage and tokens; of one that had begun
// (`started`), Usage in the details: what was made is paid for.
absl::Status EndOf(const absl::Status& status, bool started, const serve::Usage& usage);

// Called from the engine's thread.
class AnswerSink : public serve::ResponseSink {
 public:
  explicit AnswerSink(AnswerContext context) : context_(std::move(context)) { ++context_.edge.live_answers; }
  // An engine that is still busy with this request may not be ended by it: the model is let go of on a worker.
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
  // What the caller is told where the engine's own status does not say why.
  virtual absl::Status Why(const absl::Status& status) const { return status; }
  virtual void End(const absl::Status& status) = 0;
  int num_outputs() const { return context_.options.request.n; }
  // Upper bound of the messages of the echo that is still to come.
  std::size_t num_echo_messages() const;

 private:
  void Begin();
  void BeginOutputs();
  void LetGo();

  AnswerContext context_;
  v1::GenerateReply start_;
  bool started_ = false;  // by the engine
  bool begun_ = false;    // the start went out
  bool echoed_ = false;   // the echo too
  std::int32_t scored_ = 0;  // prompt tokens whose logprobs went out
  std::map<int, std::int32_t> last_token_;  // of each output
};

}  // namespace nibble::rpc
