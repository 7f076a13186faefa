#include "server/rpc/answer_sink.h"

#include <utility>

#include "server/rpc/answer_size.h"
#include "server/rpc/chat_tools.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

absl::Status EndOf(const absl::Status& status, bool started, const serve::Usage& usage) {
  if (status.ok()) return status;
  const char* stage = usage.completion_tokens > 0 ? kStageDecode : started ? kStagePrefill : kStageQueue;
  absl::Status out = StoppedAt(status, stage, usage.completion_tokens);
  if (started) out.SetPayload("type.googleapis.com/nibble.v1.Usage", absl::Cord(ToProto(usage).SerializeAsString()));
  return out;
}

void AnswerSink::OnPromptLogprobs(std::span<const serve::TokenLogprob> logprobs) {
  const text::TokenBytes& bytes = context_.resident->text.tokenizer->token_bytes();
  v1::GenerateReply reply;
  auto* piece = reply.mutable_prompt_logprobs();
  piece->set_first_position(scored_);
  if (scored_ == 0) *piece->add_tokens() = TokenWithoutLogprob(context_.prompt.front(), bytes);
  for (const serve::TokenLogprob& token : logprobs) {
    *piece->add_tokens() = ToProto(token, context_.options.num_prompt_logprobs, bytes);
  }
  if (piece->tokens().empty()) return;
  scored_ += piece->tokens_size();
  Begin();
  Emit(reply);
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
}

void AnswerSink::BeginOutputs() {
  Begin();
  if (context_.echo_text.empty() || std::exchange(echoed_, true)) return;
  for (int index = 0; index < context_.options.request.n; ++index) {
    for (std::string_view left = context_.echo_text; !left.empty();) {
      const std::string_view piece = FirstPiece(left, context_.environment.max_send_bytes);
      v1::GenerateReply echo;
      echo.mutable_delta()->set_index(index);
      echo.mutable_delta()->set_text(piece.data(), piece.size());
      Emit(echo);
      left.remove_prefix(piece.size());
    }
  }
}

std::size_t AnswerSink::num_echo_messages() const {
  if (echoed_) return 0;
  return static_cast<std::size_t>(num_outputs()) *
         MaxPieces(context_.echo_text.size(), context_.environment.max_send_bytes);
}

void AnswerSink::OnDelta(int index, std::string_view text, std::span<const serve::TokenLogprob> tokens) {
  BeginOutputs();
  // Text without tokens is the last of its output; OnOutputEnd sends it together with the end of the calls.
  if (context_.options.tools.has_value() && tokens.empty()) {
    last_text_[index] = text;
    return;
  }
  context_.environment.metrics.TokensGenerated(context_.resident->name, tokens.size());
  v1::GenerateReply reply;
  auto* delta = reply.mutable_delta();
  delta->set_index(index);
  if (context_.options.tools.has_value()) {
    SetText(ParserOf(index).Push(text), *delta);
  } else {
    delta->set_text(text.data(), text.size());
  }
  for (const serve::TokenLogprob& token : tokens) {
    last_token_[index] = token.token;
    delta->add_token_ids(token.token);
    if (!context_.options.logprobs) continue;
    *delta->add_logprobs() =
        ToProto(token, context_.options.num_logprobs, context_.resident->text.tokenizer->token_bytes());
  }
  Emit(reply);
}

void AnswerSink::SetText(text::ToolParser::Result text, v1::GenerateDelta& delta) {
  SetToolCalls(std::move(text), context_.options.tools->format, delta);
  const std::string all = delta.text();
  std::string_view left = all;
  for (std::string_view piece = left;; left.remove_prefix(piece.size())) {
    piece = FirstPiece(left, context_.environment.max_send_bytes);
    if (piece.size() == left.size()) break;
    v1::GenerateReply reply;
    reply.mutable_delta()->set_index(delta.index());
    reply.mutable_delta()->set_text(piece.data(), piece.size());
    Emit(reply);
  }
  if (left.size() < all.size()) delta.set_text(left.data(), left.size());
}

void AnswerSink::OnOutputEnd(const serve::OutputEnd& ended) {
  BeginOutputs();
  bool calls_tools = false;
  if (context_.options.tools.has_value()) {
    text::ToolParser& parser = ParserOf(ended.index);
    text::ToolParser::Result last = parser.Push(last_text_[ended.index]);
    const text::ToolParser::Result unfinished = parser.Finish();
    last.content += unfinished.content;
    for (const text::ToolParser::CallPart& part : unfinished.calls) {  // at most one, which is malformed
      if (last.calls.empty() || last.calls.back().index != part.index) last.calls.push_back(part);
      last.calls.back().malformed = part.malformed;
    }
    v1::GenerateReply rest;
    rest.mutable_delta()->set_index(ended.index);
    SetText(std::move(last), *rest.mutable_delta());
    if (!rest.delta().text().empty() || !rest.delta().tool_calls().empty()) Emit(rest);
    calls_tools = parser.num_calls() > 0 &&
                  (ended.reason == serve::FinishReason::kEos || ended.reason == serve::FinishReason::kStop);
  }
  v1::GenerateReply reply;
  auto* end = reply.mutable_finish();
  end->set_index(ended.index);
  end->set_reason(calls_tools ? v1::FINISH_REASON_TOOL_CALLS : ToProto(ended.reason));
  // `matched` stays empty for an end token, even if its text completes a stop string.
  if (ended.reason == serve::FinishReason::kStop) {
    end->set_matched(ended.matched_stop);
    if (ended.matched_stop.empty()) end->set_matched_token_id(last_token_[ended.index]);
  }
  end->set_incomplete_utf8(ended.incomplete_utf8);
  Emit(reply);
}

void AnswerSink::OnFinish(const serve::Finish& finish) {
  if (finish.status.ok()) {
    v1::GenerateReply usage;
    *usage.mutable_usage() = ToProto(finish.usage);
    Emit(usage);
  }
  const absl::Status status = EndOf(Why(finish.status), started_, finish.usage);
  const std::string model = context_.resident->name;
  context_.environment.metrics.GenerateEnded(
      model, status.ok() ? serve::Name(finish.reason) : CodeName(status.code()),
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
  context_.environment.workers.Run([resident = std::move(context_.resident)] {});
  context_.resident = nullptr;
  --context_.environment.live_answers;
}

}  // namespace nibble::rpc
