#include "server/rpc/answer_sink.h"

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

void AnswerSink::OnPromptLogprobs(std::span<const serve::TokenLogprob> logprobs) {
  auto* start = start_.mutable_start();
  if (start->prompt_logprobs().empty()) start->add_prompt_logprobs()->set_token_id(context_.prompt.front());
  for (const serve::TokenLogprob& token : logprobs) {
    *start->add_prompt_logprobs() = ToProto(token, context_.options.num_prompt_logprobs, true);
  }
}

void AnswerSink::Begin() {
  if (begun_) return;
  begun_ = true;
  auto* start = start_.mutable_start();
  start->set_request_id(context_.request_id);
  start->set_model_version(context_.resident->name);
  start->set_weights_digest(context_.resident->engine->model().info().weights_digest);
  start->set_prompt_tokens(static_cast<std::int32_t>(context_.prompt.size()));
  start->set_seed(context_.options.seed);
  Emit(start_);
  if (context_.echo_text.empty()) return;
  for (int index = 0; index < context_.options.request.n; ++index) {
    v1::GenerateReply echo;
    echo.mutable_delta()->set_index(index);
    echo.mutable_delta()->set_text(context_.echo_text);
    Emit(echo);
  }
}

void AnswerSink::OnDelta(int index, std::string_view text, std::span<const serve::TokenLogprob> tokens) {
  Begin();
  context_.edge.metrics.TokensGenerated(context_.resident->name, tokens.size());
  v1::GenerateReply reply;
  auto* delta = reply.mutable_delta();
  delta->set_index(index);
  delta->set_text(text.data(), text.size());
  for (const serve::TokenLogprob& token : tokens) {
    delta->add_token_ids(token.token);
    if (context_.options.logprobs) *delta->add_logprobs() = ToProto(token, context_.options.num_logprobs, true);
  }
  Emit(reply);
}

void AnswerSink::OnOutputEnd(const serve::OutputEnd& ended) {
  Begin();
  v1::GenerateReply reply;
  auto* end = reply.mutable_finish();
  end->set_index(ended.index);
  end->set_reason(ToProto(ended.reason));
  end->set_matched(ended.matched_stop);
  end->set_incomplete_utf8(ended.incomplete_utf8);
  Emit(reply);
}

absl::Status AnswerSink::Ended(const serve::Finish& finish) const {
  absl::Status status = Why(finish.status);
  if (status.ok()) return status;
  const serve::Usage& usage = finish.usage;
  if (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) {
    const char* stage = usage.completion_tokens > 0 ? "DECODE" : started_ ? "PREFILL" : "QUEUE";
    status = base::WithReason(status, CodeName(status.code()),
                              {{"stage", stage}, {"tokens", std::to_string(usage.completion_tokens)}});
  }
  // What was made is paid for: usage travels with the error (docs/errors.md).
  if (started_) {
    status.SetPayload("type.googleapis.com/nibble.v1.Usage", absl::Cord(ToProto(usage).SerializeAsString()));
  }
  return status;
}

void AnswerSink::OnFinish(const serve::Finish& finish) {
  if (finish.status.ok()) {
    v1::GenerateReply usage;
    *usage.mutable_usage() = ToProto(finish.usage);
    Emit(usage);
  }
  const absl::Status status = Ended(finish);
  const std::string model = context_.resident->name;
  context_.edge.metrics.GenerateEnded(model, status.ok() ? serve::Name(finish.reason) : CodeName(status.code()),
                                      {.ttft_seconds = finish.usage.ttft_ms * 1e-3,
                                       .decode_seconds = finish.usage.decode_ms * 1e-3,
                                       .prompt_tokens = finish.usage.ttft_ms > 0 ? finish.usage.prompt_tokens : 0,
                                       .completion_tokens = finish.usage.completion_tokens});
  End(status);
  LetGo();
}

void AnswerSink::LetGo() {
  context_.entry.reset();
  if (context_.resident == nullptr) return;
  context_.edge.workers.Run([resident = std::move(context_.resident)] {});
  context_.resident = nullptr;
  --context_.edge.live_answers;
}

}  // namespace nibble::rpc
