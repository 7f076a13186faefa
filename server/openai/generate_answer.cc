#include "server/openai/generate_answer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/messages/tool_calls.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

constexpr double kLowestLogprob = -9999;        // OpenAI's value for a token of probability 0; JSON has no infinity
constexpr std::size_t kFingerprintDigits = 12;  // of the digest of the weights

std::string Quoted(const std::string& text) { return base::Dump(Json(text)); }
std::string Number(double logprob) { return base::Dump(Json(std::isfinite(logprob) ? logprob : kLowestLogprob)); }

// As OpenAI's completions show a token that is not UTF-8: "bytes:\xe2\x82".
std::string TokenName(const std::string& bytes) {
  if (base::IsValidUtf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char byte : bytes) out += absl::StrFormat("\\x%02x", static_cast<unsigned char>(byte));
  return out;
}

std::int64_t NumCharacters(const std::string& bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

const char* NameOf(v1::FinishReason reason) {
  if (reason == v1::FINISH_REASON_TOOL_CALLS) return "tool_calls";
  return reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
}

// The members of a call without its braces, except `index`.
std::string CallMembers(const std::string& id, const std::string& name, const std::string& arguments) {
  return StrCat(R"("id":)", Quoted(id), R"(,"type":"function","function":{"name":)", Quoted(name), R"(,"arguments":)",
                Quoted(arguments), "}");
}

std::string Array(const std::string& elements) { return StrCat("[", elements.empty() ? "" : elements.substr(1), "]"); }

Json BytesJson(const std::string& bytes) {
  Json json = Json::array();
  for (const char byte : bytes) json.push_back(static_cast<unsigned char>(byte));
  return json;
}

// {"token", "logprob", "bytes"} of a chat.
Json TokenJson(const std::string& token, double logprob) {
  return {{"token", token},  // Dump replaces bytes that are not UTF-8
          {"logprob", std::isfinite(logprob) ? logprob : kLowestLogprob},
          {"bytes", BytesJson(token)}};
}

// The alternatives and the token itself. If two tokens have the same text, the likelier one counts. The first token of
// a prompt, which has no logprob, has 0: the types of OpenAI's libraries have no null here.
std::string TopLogprobs(const v1::TokenLogprob& token) {
  Json json = Json::object();
  const auto add = [&](const std::string& bytes, double logprob) {
    const std::string name = TokenName(bytes);
    const double value = std::isfinite(logprob) ? logprob : kLowestLogprob;
    if (!json.contains(name) || json[name].get<double>() < value) json[name] = value;
  };
  for (const v1::TopLogprob& top : token.top()) add(top.token(), top.logprob());
  add(token.token(), token.logprob());
  return base::Dump(json);
}

}  // namespace

std::string ChatLogprob(const v1::TokenLogprob& token) {
  Json json = TokenJson(token.token(), token.logprob());
  json["top_logprobs"] = Json::array();
  for (const v1::TopLogprob& top : token.top()) json["top_logprobs"].push_back(TokenJson(top.token(), top.logprob()));
  return base::Dump(json);
}

std::string FingerprintOf(const v1::GenerateStart& start) {
  return StrCat("fp_", start.weights_digest().substr(0, kFingerprintDigits));
}

GenerateAnswer::GenerateAnswer(const GenerateCall& call, const std::string& request_id, absl::Time created)
    : call_(call),
      id_(StrCat(call.chat ? "chatcmpl-" : "cmpl-", request_id)),
      created_(absl::ToUnixSeconds(created)),
      choices_(call.prompts.size() * static_cast<std::size_t>(std::max(1, call.n))) {
  MakePrefix("");  // until the first prompt starts
}

GenerateAnswer::Choice& GenerateAnswer::ChoiceOf(std::size_t prompt, std::int32_t index) {
  return choices_.at(prompt * static_cast<std::size_t>(call_.n) + static_cast<std::size_t>(index));
}

void GenerateAnswer::MakePrefix(const std::string& fingerprint) {
  const char* object = !call_.chat ? "text_completion" : call_.stream ? "chat.completion.chunk" : "chat.completion";
  prefix_ = StrCat(R"({"id":)", Quoted(id_), R"(,"object":")", object, R"(","created":)", created_, R"(,"model":)",
                   Quoted(call_.model), R"(,"system_fingerprint":)", Quoted(fingerprint));
}

std::string GenerateAnswer::UsageJson() const {
  return StrCat(R"({"prompt_tokens":)", prompt_tokens_, R"(,"completion_tokens":)", completion_tokens_,
                R"(,"total_tokens":)", prompt_tokens_ + completion_tokens_,
                R"(,"prompt_tokens_details":{"cached_tokens":)", cached_tokens_, "}}");
}

void GenerateAnswer::AddLogprob(const v1::TokenLogprob& token, Choice& choice, Logprobs& out) const {
  if (call_.chat) {
    out.content += StrCat(",", ChatLogprob(token));
    return;
  }
  out.tokens += StrCat(",", Quoted(TokenName(token.token())));
  out.token_logprobs += StrCat(",", Number(token.logprob()));
  out.top_logprobs += StrCat(",", TopLogprobs(token));
  out.text_offset += StrCat(",", choice.num_characters);
  choice.num_characters += NumCharacters(token.token());
}

std::string GenerateAnswer::LogprobsJson(const Logprobs& logprobs) const {
  if (!call_.logprobs.has_value()) return "null";
  if (call_.chat) return StrCat(R"({"content":)", Array(logprobs.content), R"(,"refusal":null})");
  return StrCat(R"({"text_offset":)", Array(logprobs.text_offset), R"(,"token_logprobs":)",
                Array(logprobs.token_logprobs), R"(,"tokens":)", Array(logprobs.tokens), R"(,"top_logprobs":)",
                Array(logprobs.top_logprobs), "}");
}

std::string GenerateAnswer::Event(std::size_t index, const std::string& text, const std::string& logprobs,
                                  const std::string& finish_reason) const {
  return StrCat("data: ", prefix_, R"(,"choices":[{"index":)", index, call_.chat ? R"(,"delta":)" : R"(,"text":)", text,
                R"(,"logprobs":)", logprobs, R"(,"finish_reason":)", finish_reason, "}]",
                call_.include_usage ? R"(,"usage":null)" : "", "}\n\n");
}

std::string GenerateAnswer::DeltaEvents(std::size_t index, const v1::GenerateDelta& delta,
                                        const std::string& logprobs) const {
  std::vector<std::string> pieces;
  if (!call_.chat) {
    pieces.push_back(Quoted(delta.text()));
  } else if (!delta.text().empty()) {
    pieces.push_back(StrCat(R"({"content":)", Quoted(delta.text()), "}"));
  }
  // A malformed call stays unfinished: its text is the content, and finish_reason does not announce it.
  for (const v1::ToolCallDelta& call : delta.tool_calls()) {
    if (call.malformed()) continue;
    const std::string begin = StrCat(R"({"tool_calls":[{"index":)", call.index(), ",");
    if (!call.name().empty()) pieces.push_back(StrCat(begin, CallMembers(call.id(), call.name(), ""), "}]}"));
    if (!call.arguments().empty())
      pieces.push_back(StrCat(begin, R"("function":{"arguments":)", Quoted(call.arguments()), "}}]}"));
  }
  if (pieces.empty()) {  // text is held back, until its characters are complete or it is known to be no call
    if (logprobs == "null") return "";
    pieces.emplace_back(R"({"content":""})");
  }
  std::string events;
  for (std::size_t i = 0; i < pieces.size(); ++i) events += Event(index, pieces[i], i == 0 ? logprobs : "null", "null");
  return events;
}

// A chat's choice begins with its role.
std::string GenerateAnswer::Begun(std::size_t index) {
  if (std::exchange(choices_[index].begun, true) || !call_.chat) return "";
  return Event(index, R"({"role":"assistant","content":""})", "null", "null");
}

std::string GenerateAnswer::Take(std::size_t prompt, const v1::GenerateReply& reply) {
  const auto first = prompt * static_cast<std::size_t>(call_.n);
  switch (reply.event_case()) {
    case v1::GenerateReply::kStart: {
      MakePrefix(FingerprintOf(reply.start()));
      prompt_tokens_ += reply.start().prompt_tokens();
      cached_tokens_ += reply.start().cached_tokens();
      std::string events;
      for (std::size_t i = first; call_.stream && i < first + static_cast<std::size_t>(call_.n); ++i)
        events += Begun(i);
      return events;
    }
    case v1::GenerateReply::kPromptLogprobs: {
      std::string events;
      for (std::size_t i = first; i < first + static_cast<std::size_t>(call_.n); ++i) {
        Logprobs piece;
        Logprobs& out = call_.stream ? piece : choices_[i].logprobs;
        const std::size_t before = out.top_logprobs.size();
        for (const v1::TokenLogprob& token : reply.prompt_logprobs().tokens()) AddLogprob(token, choices_[i], out);
        if (call_.stream) events += Event(i, "\"\"", LogprobsJson(piece), "null");
        num_bytes_ += 2 * (out.top_logprobs.size() - before);
      }
      return events;
    }
    case v1::GenerateReply::kDelta: {
      const v1::GenerateDelta& delta = reply.delta();
      if (call_.score_only && delta.token_ids_size() > 0) return "";
      Choice& choice = ChoiceOf(prompt, delta.index());
      Logprobs piece;
      Logprobs& out = call_.stream ? piece : choice.logprobs;
      const std::size_t before = out.content.size() + out.top_logprobs.size();
      for (const v1::TokenLogprob& token : delta.logprobs()) AddLogprob(token, choice, out);
      if (!call_.stream) {
        choice.text += delta.text();
        messages::AddToolCalls(delta, choice.tool_calls);
        for (const v1::ToolCallDelta& call : delta.tool_calls()) num_bytes_ += call.ByteSizeLong();
        num_bytes_ += delta.text().size() + 2 * (out.content.size() + out.top_logprobs.size() - before);
        return "";
      }
      if (!call_.chat && delta.text().empty() && delta.logprobs().empty()) return "";
      const std::size_t index = first + static_cast<std::size_t>(delta.index());
      const std::string events = DeltaEvents(index, delta, delta.logprobs().empty() ? "null" : LogprobsJson(piece));
      return events.empty() ? "" : Begun(index) + events;
    }
    case v1::GenerateReply::kFinish: {
      const std::string reason = Quoted(call_.score_only ? "length" : NameOf(reply.finish().reason()));
      ChoiceOf(prompt, reply.finish().index()).finish_reason = reason;
      if (!call_.stream) return "";
      const std::size_t index = first + static_cast<std::size_t>(reply.finish().index());
      return Begun(index) + Event(index, call_.chat ? "{}" : "\"\"", "null", reason);
    }
    case v1::GenerateReply::kUsage:
      if (!call_.score_only) completion_tokens_ += reply.usage().completion_tokens();
      return "";
    default: return "";
  }
}

std::string GenerateAnswer::LastEvents() {
  const std::string usage =
      call_.include_usage ? StrCat("data: ", prefix_, R"(,"choices":[],"usage":)", UsageJson(), "}\n\n") : "";
  return usage + "data: [DONE]\n\n";
}

std::string GenerateAnswer::Whole() {
  std::string choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    std::string calls;
    for (const v1::ToolCall& call : choice.tool_calls)
      calls += StrCat(",{", CallMembers(call.id(), call.name(), call.arguments()), "}");
    const std::string text = choice.text.empty() && !calls.empty() ? "null" : Quoted(choice.text);
    if (!calls.empty()) calls = StrCat(R"(,"tool_calls":)", Array(calls));
    choices += StrCat(
        i == 0 ? "" : ",", R"({"index":)", i,
        call_.chat ? StrCat(R"(,"message":{"role":"assistant","content":)", text, R"(,"refusal":null)", calls, "}")
                   : StrCat(R"(,"text":)", text),
        R"(,"logprobs":)", LogprobsJson(choice.logprobs), R"(,"finish_reason":)", choice.finish_reason, "}");
  }
  return StrCat(prefix_, R"(,"choices":[)", choices, R"(],"usage":)", UsageJson(), "}");
}

}  // namespace nibble::openai
