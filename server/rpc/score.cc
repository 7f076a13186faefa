#include "server/rpc/score.h"

#include <cmath>
#include <memory>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/answer_sink.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/model_name.h"
#include "server/rpc/request_owner.h"

namespace nibble::rpc {

namespace {

constexpr int kMaxTop = 20;

class ScoreSink final : public serve::ResponseSink {
 public:
  ScoreSink(Edge& edge, std::shared_ptr<const serve::Resident> resident, std::int64_t num_top, UnaryCall* call,
            v1::ScoreResponse* response)
      : edge_(edge), resident_(std::move(resident)), num_top_(num_top), call_(call), response_(response) {
    ++edge_.live_answers;
  }
  ~ScoreSink() override { LetGo(); }

  void OnStart(double) override { started_ = true; }
  void OnPromptLogprobs(std::span<const serve::TokenLogprob> logprobs) override {
    for (const serve::TokenLogprob& token : logprobs) {
      v1::TokenLogprob* added = response_->add_tokens();
      *added = ToProto(token, num_top_, true);
      added->set_logits_digest(token.logits_digest);
      sum_ += token.logprob;
      ++count_;
    }
  }
  void OnDelta(int, std::string_view, std::span<const serve::TokenLogprob>) override {}
  void OnOutputEnd(const serve::OutputEnd&) override {}
  void OnFinish(const serve::Finish& finish) override {
    edge_.metrics.GenerateEnded(resident_->name, finish.status.ok() ? "score" : CodeName(finish.status.code()),
                                {.prompt_tokens = finish.status.ok() ? finish.usage.prompt_tokens : 0});
    if (finish.status.ok()) {
      const double loss = count_ > 0 ? -sum_ / static_cast<double>(count_) : 0;
      response_->set_mean_loss(loss);
      response_->set_perplexity(std::exp(loss));
      *response_->mutable_usage() = ToProto(finish.usage);
      response_->set_weights_digest(resident_->engine->model().info().weights_digest);
    }
    call_->Done(EndOf(finish.status, started_, finish.usage));
    LetGo();
  }

 private:
  // On a worker: the engine's own thread must not be the one that ends it.
  void LetGo() {
    if (resident_ == nullptr) return;
    edge_.workers.Run([resident = std::move(resident_)] {});
    resident_ = nullptr;
    --edge_.live_answers;
  }

  Edge& edge_;
  std::shared_ptr<const serve::Resident> resident_;
  const std::int64_t num_top_;
  UnaryCall* const call_;
  v1::ScoreResponse* const response_;
  bool started_ = false;  // by the engine
  double sum_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace

absl::Status CheckScore(const v1::ScoreRequest& request) {
  NIBBLE_RETURN_IF_ERROR(CheckModelName("ScoreRequest.model", request.model()));
  if (request.top_n() < 0 || request.top_n() > kMaxTop) {
    return base::FieldError("top_n", base::StrCat("is ", request.top_n(), ", wanted 0 to ", kMaxTop));
  }
  if (request.has_chunk_tokens() && request.chunk_tokens() < 1) {
    return base::FieldError("chunk_tokens", base::StrCat("is ", request.chunk_tokens(), ", wanted at least 1"));
  }
  return absl::OkStatus();
}

absl::Status SubmitScore(Edge& edge, ModelLoads::Loaded loaded, const v1::ScoreRequest& request, UnaryCall* call,
                         v1::ScoreResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(auto resident, std::move(loaded));
  const absl::Duration deadline = call->call().DeadlineOr(edge.generate_deadline);
  NIBBLE_RETURN_IF_ERROR(call->call().StillWanted(deadline));  // a load may take long
  serve::Request score;
  NIBBLE_ASSIGN_OR_RETURN(score.prompt, PromptOf(request, resident->text,
                                                 {.max_tokens = resident->engine->max_context(),
                                                  .max_bytes = edge.max_prompt_bytes,
                                                  .cancelled = [cancel = call->call().cancel()] { return cancel.cancelled(); }}));
  score.prompt_field = InputField(request);
  if (score.prompt.empty()) return base::FieldError(score.prompt_field, "has no tokens, wanted at least one");
  response->add_tokens()->set_token_id(score.prompt.front());
  score.prompt_logprobs = true;
  score.top_logprobs = request.top_n();
  score.logits_digests = request.logits_digests();
  score.score_chunk = request.chunk_tokens();
  score.principal = FairnessKey(call->call().principal());
  score.cancel = call->call().cancel();
  score.deadline = deadline;
  serve::Engine& engine = *resident->engine;
  return engine.Submit(std::move(score),
                       std::make_shared<ScoreSink>(edge, std::move(resident), request.top_n(), call, response));
}

}  // namespace nibble::rpc
