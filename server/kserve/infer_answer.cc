#include "server/kserve/infer_answer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/json.h"
#include "server/base/log.h"
#include "server/base/strings.h"
#include "server/kserve/tensors.h"

namespace nibble::kserve {

namespace {

using base::Json;
using base::StrCat;

constexpr double kLowestLogprob = -9999;         // of a token of probability 0; JSON has no infinity
constexpr std::uint32_t kMaxWaitingTokens = 16;  // of an output; more are sent without a text

const char* NameOf(v1::FinishReason reason) { return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop"; }

// An entry of vLLM's dictionary of a token's logprobs. `rank`: null if unknown.
Json Entry(double logprob, const Json& rank, const std::string& token) {
  return {{"logprob", std::isfinite(logprob) ? logprob : kLowestLogprob},
          {"rank", rank},
          {"decoded_token", token}};  // Dump replaces bytes that are not UTF-8
}

// {"id": {"logprob", "rank", "decoded_token"}}: the token itself first, then its `num` most likely alternatives.
std::string LogprobJson(const v1::TokenLogprob& token, int num) {
  const auto own = std::find_if(token.top().begin(), token.top().end(),
                                [&](const v1::TopLogprob& top) { return top.token_id() == token.token_id(); });
  const Json rank = own == token.top().end() ? Json(nullptr) : Json(own - token.top().begin() + 1);
  Json json = Json::object();
  json[std::to_string(token.token_id())] = Entry(token.logprob(), rank, token.token());
  for (int i = 0; i < std::min(num, token.top_size()); ++i) {
    const v1::TopLogprob& top = token.top(i);
    if (top.token_id() == token.token_id()) continue;
    json[std::to_string(top.token_id())] = Entry(top.logprob(), i + 1, top.token());
  }
  return base::Dump(json);
}

absl::Duration FromMs(double ms) { return absl::Milliseconds(ms); }

}  // namespace

void SetFinal(inference::ModelInferResponse& response, bool final) {
  (*response.mutable_parameters())["triton_final_response"].set_bool_param(final);
}

InferAnswer::InferAnswer(const InferCall& call)
    : call_(call),
      max_tokens_(call.request.stopping().max_tokens()),
      outputs_(static_cast<std::size_t>(call.n)),
      pieces_(outputs_.size()) {}

inference::ModelInferResponse InferAnswer::Empty() const {
  inference::ModelInferResponse response;
  response.set_model_name(call_.request.model());
  response.set_model_version(kModelVersion);
  response.set_id(call_.id);
  return response;
}

inference::ModelInferResponse InferAnswer::Response() {
  inference::ModelInferResponse response = Empty();
  OutputTensors tensors(call_.outputs, response);
  std::vector<std::string> texts, reasons, logprobs;
  std::vector<float> cumulative;
  std::vector<std::uint32_t> num_tokens;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    Piece piece = std::exchange(pieces_[i], {});
    texts.push_back(std::move(piece.text));
    reasons.push_back(outputs_[i].finish_reason);
    cumulative.push_back(static_cast<float>(outputs_[i].cumulative_logprob));
    logprobs.push_back(call_.has_logprobs ? StrCat("[", piece.logprobs.empty() ? "" : piece.logprobs.substr(1), "]")
                                          : "null");
    num_tokens.push_back(piece.num_tokens);
  }
  tensors.Add("text_output", texts);
  if (call_.finish_reason) tensors.Add("finish_reason", reasons);
  if (call_.cumulative_logprob) tensors.Add("cumulative_logprob", cumulative);
  if (call_.logprobs) tensors.Add("logprobs", logprobs);
  if (call_.num_input_tokens) tensors.Add("num_input_tokens", std::vector<std::uint32_t>{num_input_tokens_});
  if (call_.num_output_tokens) tensors.Add("num_output_tokens", num_tokens);
  return response;
}

template <typename Logprobs>
void InferAnswer::AddLogprobs(const Logprobs& tokens, Output& output, Piece& piece) const {
  for (const v1::TokenLogprob& token : tokens) {
    output.cumulative_logprob += token.logprob();
    if (call_.logprobs && call_.has_logprobs) piece.logprobs += StrCat(",", LogprobJson(token, call_.num_logprobs));
  }
}

void InferAnswer::TakeUsage(const v1::Usage& usage) { computed_ = FromMs(usage.prefill_ms() + usage.decode_ms()); }

std::optional<inference::ModelInferResponse> InferAnswer::TakeDelta(const v1::GenerateDelta& delta) {
  const auto index = static_cast<std::size_t>(delta.index());
  CHECK(index < outputs_.size());
  Output& output = outputs_[index];
  Piece& piece = pieces_[index];
  piece.text += delta.text();
  piece.num_tokens += static_cast<std::uint32_t>(delta.token_ids_size());
  output.num_tokens += delta.token_ids_size();
  AddLogprobs(delta.logprobs(), output, piece);
  const bool may_wait = piece.text.empty() || output.num_tokens >= max_tokens_;
  if (may_wait && piece.num_tokens < kMaxWaitingTokens) return std::nullopt;
  return Response();
}

std::optional<inference::ModelInferResponse> InferAnswer::Take(const v1::GenerateReply& reply) {
  switch (reply.event_case()) {
    case v1::GenerateReply::kStart:
      num_input_tokens_ = static_cast<std::uint32_t>(reply.start().prompt_tokens());
      queued_ = FromMs(reply.start().queue_ms());
      return std::nullopt;
    case v1::GenerateReply::kDelta: return TakeDelta(reply.delta());
    case v1::GenerateReply::kFinish: {
      const auto index = static_cast<std::size_t>(reply.finish().index());
      CHECK(index < outputs_.size());
      outputs_[index].finish_reason = NameOf(reply.finish().reason());
      return std::nullopt;
    }
    case v1::GenerateReply::kUsage: TakeUsage(reply.usage()); return std::nullopt;
    default: return std::nullopt;
  }
}

inference::ModelInferResponse InferAnswer::Ended() { return Response(); }

inference::ModelInferResponse InferAnswer::Whole(const v1::GenerateResponse& whole) {
  num_input_tokens_ = static_cast<std::uint32_t>(whole.start().prompt_tokens());
  queued_ = FromMs(whole.start().queue_ms());
  TakeUsage(whole.usage());
  for (const v1::GenerateOutput& output : whole.outputs()) {
    const auto index = static_cast<std::size_t>(output.index());
    CHECK(index < outputs_.size());
    Piece& piece = pieces_[index];
    piece.text = output.text();
    piece.num_tokens = static_cast<std::uint32_t>(output.token_ids_size());
    AddLogprobs(output.logprobs(), outputs_[index], piece);
    outputs_[index].finish_reason = NameOf(output.finish().reason());
  }
  return Response();
}

}  // namespace nibble::kserve
