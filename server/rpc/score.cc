#include "server/rpc/score.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/answer_sink.h"
#include "server/rpc/answer_size.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/model_name.h"
#include "server/rpc/paced_stream.h"

namespace nibble::rpc {

namespace {

constexpr int kMaxTop = 20;
// Bytes of a ScoreResponse besides its tokens: two doubles, a Usage and a digest.
constexpr std::size_t kScoreFrame = 256;

// Passes on pieces of the prompt's logprobs, at most one per step, then the finish with the mean loss.
class ScoreSink : public serve::ResponseSink {
 public:
  ScoreSink(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident, std::int64_t num_top,
            std::int32_t first_token)
      : environment_(environment), resident_(std::move(resident)), num_top_(num_top), first_token_(first_token) {
    ++environment_.live_answers;
  }
  ~ScoreSink() override { LetGo(); }

  void OnStart(double) override { started_ = true; }
  void OnPromptLogprobs(std::span<const serve::TokenLogprob> logprobs) override {
    const text::TokenBytes& bytes = resident_->text.tokenizer->token_bytes();
    v1::PromptLogprobs piece;
    piece.set_first_position(position_);
    if (position_ == 0) *piece.add_tokens() = TokenWithoutLogprob(first_token_, bytes);
    for (const serve::TokenLogprob& token : logprobs) {
      *piece.add_tokens() = ToProto(token, num_top_, bytes);
      sum_ += token.logprob;
    }
    if (piece.tokens().empty()) return;
    position_ += piece.tokens_size();
    Take(piece);
  }
  void OnDelta(int, std::string_view, std::span<const serve::TokenLogprob>) override {}
  void OnOutputEnd(const serve::OutputEnd&) override {}
  void OnFinish(const serve::Finish& finish) override {
    environment_.metrics.GenerateEnded(resident_->name, finish.status.ok() ? "score" : CodeName(finish.status.code()),
                                       {.prompt_tokens = finish.status.ok() ? finish.usage.prompt_tokens : 0});
    const double loss = position_ > 1 ? -sum_ / (position_ - 1) : 0;
    v1::ScoreFinish end;
    end.set_mean_loss(loss);
    end.set_perplexity(std::exp(loss));
    *end.mutable_usage() = ToProto(finish.usage);
    end.set_weights_digest(resident_->engine->model().info().weights_digest);
    End(EndOf(Why(finish.status), started_, finish.usage), end);
    LetGo();
  }

 protected:
  virtual void Take(v1::PromptLogprobs& piece) = 0;
  // Replaces the engine's status if it does not name the cause.
  virtual absl::Status Why(const absl::Status& status) const { return status; }
  virtual void End(const absl::Status& status, v1::ScoreFinish& end) = 0;

 private:
  // Releases the model on a worker: the engine's own thread must not destroy the engine.
  void LetGo() {
    if (resident_ == nullptr) return;
    environment_.workers.Run([resident = std::move(resident_)] {});
    resident_ = nullptr;
    --environment_.live_answers;
  }

  CallEnvironment& environment_;
  std::shared_ptr<const serve::Resident> resident_;
  const std::int64_t num_top_;
  const std::int32_t first_token_;
  bool started_ = false;  // by the engine
  double sum_ = 0;
  std::int32_t position_ = 0;  // of the next token
};

class UnaryScoreSink final : public ScoreSink {
 public:
  UnaryScoreSink(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident, std::int64_t num_top,
                 std::int32_t first_token, UnaryCall* call, v1::ScoreResponse* response)
      : ScoreSink(environment, std::move(resident), num_top, first_token), call_(call), response_(response) {}

 private:
  void Take(v1::PromptLogprobs& piece) override {
    for (v1::TokenLogprob& token : *piece.mutable_tokens()) response_->add_tokens()->Swap(&token);
  }
  void End(const absl::Status& status, v1::ScoreFinish& end) override {
    if (status.ok()) {
      response_->set_mean_loss(end.mean_loss());
      response_->set_perplexity(end.perplexity());
      response_->mutable_usage()->Swap(end.mutable_usage());
      response_->set_weights_digest(end.weights_digest());
    }
    call_->Done(status);
  }

  UnaryCall* const call_;
  v1::ScoreResponse* const response_;
};

class StreamScoreSink final : public ScoreSink {
 public:
  StreamScoreSink(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident, std::int64_t num_top,
                  std::int32_t first_token, std::shared_ptr<StreamReactor<v1::ScoreReply>> stream)
      : ScoreSink(environment, std::move(resident), num_top, first_token), stream_(std::move(stream)) {}

 private:
  // One piece and the finish.
  bool Ready() override { return stream_.Ready(/*reserve=*/2); }
  void Take(v1::PromptLogprobs& piece) override {
    v1::ScoreReply reply;
    reply.mutable_tokens()->Swap(&piece);
    stream_.Push(reply);
  }
  absl::Status Why(const absl::Status& status) const override { return stream_.Why(status); }
  void End(const absl::Status& status, v1::ScoreFinish& end) override {
    if (status.ok()) {
      v1::ScoreReply reply;
      reply.mutable_finish()->Swap(&end);
      stream_.Push(reply);
    }
    stream_.End(stream_.Why(status));  // again, because the Push above may have found the reader too slow
  }

  PacedStream<v1::ScoreReply> stream_;
};

// The engine's request. `unary`: the answer must fit one message.
absl::StatusOr<serve::Request> ScoreOf(const CallEnvironment& environment, const serve::Resident& resident,
                                       const v1::ScoreRequest& request, const std::string& rendered, const Call& call,
                                       bool unary) {
  const absl::Duration deadline = call.DeadlineOr(environment.generate_deadline);
  NIBBLE_RETURN_IF_ERROR(call.StillWanted(deadline));  // a load may take long
  serve::Request score;
  NIBBLE_ASSIGN_OR_RETURN(score.prompt, PromptOf(request, rendered, resident.text,
                                                 {.max_tokens = resident.engine->max_context(),
                                                  .max_bytes = environment.max_prompt_bytes,
                                                  .cancelled = call.stopped()}));
  score.prompt_field = InputField(request);
  if (score.prompt.empty()) return base::FieldError(score.prompt_field, "has no tokens, wanted at least one");
  // Build the byte table here rather than on the engine's thread.
  const std::size_t entry =
      LogprobBytes(resident.text.tokenizer->token_bytes(), request.top_n(), request.logits_digests());
  std::int64_t chunk = request.chunk_tokens();
  if (unary) {
    NIBBLE_RETURN_IF_ERROR(
        CheckUnaryAnswer(score.prompt.size() * entry + kScoreFrame, environment.max_send_bytes, "ScoreStream"));
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::int64_t most, TokensOfAPiece(entry, environment.max_send_bytes));
    chunk = chunk > 0 ? std::min(chunk, most) : most;
  }
  score.prompt_logprobs = true;
  score.top_logprobs = request.top_n();
  score.logits_digests = request.logits_digests();
  score.score_chunk = chunk;
  score.principal = auth::FairnessKey(call.principal());
  score.cancel = call.cancel();
  score.deadline = deadline;
  return score;
}

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

absl::Status SubmitScore(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::ScoreRequest& request, const std::string& rendered, UnaryCall* call,
                         v1::ScoreResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(serve::Request score,
                          ScoreOf(environment, *resident, request, rendered, call->call(), /*unary=*/true));
  serve::Engine& engine = *resident->engine;
  const std::int32_t first = score.prompt.front();
  return engine.Submit(std::move(score), std::make_shared<UnaryScoreSink>(environment, std::move(resident),
                                                                          request.top_n(), first, call, response));
}

absl::Status SubmitScore(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::ScoreRequest& request, const std::string& rendered,
                         std::shared_ptr<StreamReactor<v1::ScoreReply>> stream) {
  NIBBLE_ASSIGN_OR_RETURN(serve::Request score,
                          ScoreOf(environment, *resident, request, rendered, stream->call(), /*unary=*/false));
  serve::Engine& engine = *resident->engine;
  const std::int32_t first = score.prompt.front();
  return engine.Submit(std::move(score), std::make_shared<StreamScoreSink>(environment, std::move(resident),
                                                                           request.top_n(), first, std::move(stream)));
}

}  // namespace nibble::rpc
