#include "server/rpc/embed.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "server/auth/request_owner.h"
#include "server/base/error.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/answer_sink.h"
#include "server/rpc/answer_size.h"
#include "server/rpc/inference_input.h"
#include "server/rpc/model_name.h"
#include "server/text/prompt_length.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;

constexpr std::size_t kMaxRunning = 8;       // texts of a call that the engine has at a time
constexpr std::size_t kEmbeddingFrame = 16;  // bytes of an Embedding besides its values
constexpr std::size_t kEmbedFrame = 128;     // bytes of an EmbedResponse besides its embeddings

bool HasTexts(const v1::EmbedRequest& request) { return request.texts_size() > 0; }
int NumTexts(const v1::EmbedRequest& request) {
  return HasTexts(request) ? request.texts_size() : request.token_ids_size();
}

absl::StatusOr<std::vector<std::int32_t>> TokensOf(const v1::EmbedRequest& request, int index,
                                                   const serve::Resident& resident, const text::PromptLimits& limits) {
  v1::ScoreRequest one;
  if (HasTexts(request)) {
    one.set_text(request.texts(index));
  } else {
    *one.mutable_token_ids() = request.token_ids(index);
  }
  auto tokens = PromptOf(one, /*rendered=*/"", resident.text, limits);
  const std::string field = StrCat(HasTexts(request) ? "texts" : "token_ids", "[", index, "]");
  if (tokens.ok() && tokens->empty()) return FieldError(field, "has no tokens, wanted at least one");
  if (tokens.ok() && static_cast<std::int64_t>(tokens->size()) <= limits.max_tokens) return tokens;
  if (!tokens.ok() && base::Reason(tokens.status()) != "PROMPT_TOO_LONG") return tokens;
  if (tokens.ok()) {
    return base::WithReason(absl::InvalidArgumentError(StrCat(field, ": has ", tokens->size(),
                                                              " tokens, the model takes ", limits.max_tokens)),
                            "PROMPT_TOO_LONG",
                            {{"tokens", std::to_string(tokens->size())}, {"max", std::to_string(limits.max_tokens)}});
  }
  // Names the text among the others.
  const std::string message(tokens.status().message());
  return base::WithReason(absl::InvalidArgumentError(StrCat(field, message.substr(message.find(':')))),
                          "PROMPT_TOO_LONG", base::ReasonMetadata(tokens.status()));
}

// One call. Its texts run as requests of the engine; the engine's thread calls Pool() and Ended(). Lives until the last
// request has ended.
class EmbedCall : public std::enable_shared_from_this<EmbedCall> {
 public:
  EmbedCall(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident, v1::Pooling pooling,
            bool normalize, absl::Duration deadline, UnaryCall* call, v1::EmbedResponse* response,
            std::vector<std::vector<std::int32_t>> prompts)
      : environment_(environment),
        pooling_(pooling),
        normalize_(normalize),
        deadline_(deadline),
        principal_(auth::FairnessKey(call->call().principal())),
        cancel_(call->call().cancel()),
        call_(call),
        response_(response),
        prompts_(std::move(prompts)),
        resident_(std::move(resident)) {
    ++environment_.live_answers;
    for (const auto& prompt : prompts_)
      response_->add_embeddings()->set_tokens(static_cast<std::int32_t>(prompt.size()));
    response_->set_weights_digest(resident_->engine->model().info().weights_digest);
  }
  // Releases the model on a worker: the engine's own thread must not destroy the engine.
  ~EmbedCall() {
    environment_.workers.Run([resident = std::move(resident_)] {});
    --environment_.live_answers;
  }

  // Submits texts until kMaxRunning run. Not on the engine's thread.
  void SubmitMore() {
    while (true) {
      std::size_t index;
      {
        base::MutexLock lock(mutex_);
        if (done_ || next_ == prompts_.size() || running_ == kMaxRunning) return;
        index = next_++;
        ++running_;
      }
      if (const absl::Status status = Submit(index); !status.ok()) return Finish(status);
    }
  }

  void Store(std::size_t index, const std::vector<double>& vector) {
    double squares = 0;
    for (const double value : vector) squares += value * value;
    const double scale = normalize_ && squares > 0 ? 1 / std::sqrt(squares) : 1;
    v1::Embedding& embedding = *response_->mutable_embeddings(static_cast<int>(index));
    embedding.mutable_values()->Reserve(static_cast<int>(vector.size()));
    for (const double value : vector) embedding.add_values(static_cast<float>(value * scale));
  }

  void Ended(std::size_t index, const serve::Finish& finish, bool started, const std::vector<double>& vector) {
    environment_.metrics.GenerateEnded(resident_->name, finish.status.ok() ? "embed" : CodeName(finish.status.code()),
                                       {.prompt_tokens = finish.status.ok() ? finish.usage.prompt_tokens : 0});
    if (!finish.status.ok()) return Finish(EndOf(finish.status, started, finish.usage));
    bool last;
    {
      base::MutexLock lock(mutex_);
      if (done_) return;
      Store(index, vector);
      --running_;
      last = ++num_ended_ == prompts_.size();
    }
    if (last) return Finish(absl::OkStatus());
    environment_.workers.Run([self = shared_from_this()] { self->SubmitMore(); });
  }

  v1::Pooling pooling() const { return pooling_; }

 private:
  absl::Status Submit(std::size_t index);

  // Ends the call once; cancels the other requests after an error.
  void Finish(const absl::Status& status) {
    {
      base::MutexLock lock(mutex_);
      if (std::exchange(done_, true)) return;
    }
    if (!status.ok()) cancel_.Cancel();
    call_->Done(status);
  }

  CallEnvironment& environment_;
  const v1::Pooling pooling_;
  const bool normalize_;
  const absl::Duration deadline_;
  const std::string principal_;
  base::CancelToken cancel_;
  UnaryCall* const call_;  // like response_, not used after Done()
  v1::EmbedResponse* const response_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::shared_ptr<const serve::Resident> resident_;

  base::Mutex mutex_;
  std::size_t next_ ABSL_GUARDED_BY(mutex_) = 0;  // text to submit next
  std::size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t num_ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

// Pools the hidden states of one text, in f64 and in the order of its tokens, so that the bits do not depend on steps.
class EmbedSink final : public serve::ResponseSink {
 public:
  EmbedSink(std::shared_ptr<EmbedCall> owner, std::size_t index) : owner_(std::move(owner)), index_(index) {}

  void OnStart(double) override { started_ = true; }
  void OnPromptLogprobs(std::span<const serve::TokenLogprob>) override {}
  void OnDelta(int, std::string_view, std::span<const serve::TokenLogprob>) override {}
  void OnOutputEnd(const serve::OutputEnd&) override {}
  void OnHidden(kernels::ConstMatrix rows) override {
    sum_.resize(static_cast<std::size_t>(rows.cols));
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      const float* row = rows.Row<float>(r);
      for (std::size_t c = 0; c < sum_.size(); ++c) sum_[c] += static_cast<double>(row[c]);
    }
    num_rows_ += rows.rows;
  }
  void OnFinish(const serve::Finish& finish) override {
    for (double& value : sum_) value /= static_cast<double>(num_rows_);
    owner_->Ended(index_, finish, started_, sum_);
    owner_ = nullptr;
  }

 private:
  std::shared_ptr<EmbedCall> owner_;
  const std::size_t index_;
  bool started_ = false;
  std::int64_t num_rows_ = 0;
  std::vector<double> sum_;
};

absl::Status EmbedCall::Submit(std::size_t index) {
  serve::Request request;
  request.prompt = std::move(prompts_[index]);
  request.prompt_field = "texts";
  request.hidden = pooling_ == v1::POOLING_LAST ? serve::HiddenStates::kLast : serve::HiddenStates::kAll;
  request.principal = principal_;
  request.cancel = cancel_;
  request.deadline = deadline_;
  return resident_->engine->Submit(std::move(request), std::make_shared<EmbedSink>(shared_from_this(), index));
}

}  // namespace

std::size_t TextBytes(const v1::EmbedRequest& request) {
  std::size_t bytes = 0;
  for (const std::string& text : request.texts()) bytes += text.size();
  return bytes;
}

absl::Status CheckEmbed(const v1::EmbedRequest& request, std::size_t max_text_bytes) {
  if (request.model().empty()) return FieldError("model", "is empty, wanted a model's name");
  NIBBLE_RETURN_IF_ERROR(CheckModelName("EmbedRequest.model", request.model()));
  if (HasTexts(request) == (request.token_ids_size() > 0))
    return FieldError("texts", "wanted either texts or token_ids");
  if (NumTexts(request) > kMaxEmbedded) {
    return FieldError(HasTexts(request) ? "texts" : "token_ids",
                      StrCat("has ", NumTexts(request), " texts, wanted at most ", kMaxEmbedded));
  }
  if (!v1::Pooling_IsValid(request.pooling()))
    return FieldError("pooling",
                      StrCat("is ", static_cast<int>(request.pooling()), ", wanted POOLING_MEAN or POOLING_LAST"));
  for (const std::string& text : request.texts())
    NIBBLE_RETURN_IF_ERROR(CheckTextBytes("texts", text.size(), max_text_bytes));
  for (const v1::TokenIds& ids : request.token_ids())
    NIBBLE_RETURN_IF_ERROR(CheckTokenCount(static_cast<std::size_t>(ids.ids_size()), max_text_bytes));
  return absl::OkStatus();
}

absl::Status SubmitEmbed(CallEnvironment& environment, std::shared_ptr<const serve::Resident> resident,
                         const v1::EmbedRequest& request, absl::Duration deadline, UnaryCall* call,
                         v1::EmbedResponse* response) {
  NIBBLE_RETURN_IF_ERROR(call->call().StillWanted(deadline));  // a load may take long
  const auto num_values = static_cast<std::size_t>(resident->engine->model().config().hidden_size);
  const std::size_t bytes =
      static_cast<std::size_t>(NumTexts(request)) * (num_values * sizeof(float) + kEmbeddingFrame) + kEmbedFrame;
  if (bytes > environment.max_send_bytes) {
    return base::WithReason(
        absl::ResourceExhaustedError(StrCat("the answer needs ", bytes, " bytes, the server sends at most ",
                                            environment.max_send_bytes, " (--max_send_bytes); embed fewer texts")),
        "MESSAGE_TOO_LARGE", {{"need", std::to_string(bytes)}, {"max", std::to_string(environment.max_send_bytes)}});
  }
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 0; i < NumTexts(request); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(prompts.emplace_back(), TokensOf(request, i, *resident,
                                                             {.max_tokens = resident->engine->max_context(),
                                                              .max_bytes = environment.max_prompt_bytes,
                                                              .cancelled = call->call().stopped()}));
  }
  const bool normalize = !request.has_normalize() || request.normalize();
  std::make_shared<EmbedCall>(environment, std::move(resident), request.pooling(), normalize, deadline, call, response,
                              std::move(prompts))
      ->SubmitMore();
  return absl::OkStatus();
}

}  // namespace nibble::rpc
