#include "server/openai/response_answer.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/openai/generate_answer.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

std::string Array(std::string_view elements) { return StrCat("[", elements.substr(elements.empty() ? 0 : 1), "]"); }

std::string Quoted(std::string_view text) { return base::Dump(Json(text)); }

// Codes of failed responses, from OpenAI's set.
const char* FailureCode(const ApiError& error) {
  if (error.status == 429) return "rate_limit_exceeded";
  return error.status < 500 && error.status != 499 ? "invalid_prompt" : "server_error";
}

}  // namespace

ResponseAnswer::ResponseAnswer(ResponseCall call, ResponseKeeping keeping, absl::Time created)
    : call_(std::move(call)),
      keeping_(std::move(keeping)),
      created_(absl::ToUnixSeconds(created)),
      with_logprobs_(call_.generate.logprobs.has_value()),
      message_id_(ItemId("msg", call_.id, call_.input.size())) {
  const std::string echo = base::Dump(call_.echo);
  echo_ = StrCat(",", echo.substr(1, echo.size() - 2));
}

std::string ResponseAnswer::Event(std::string_view type, std::string_view fields) {
  return StrCat("event: ", type, "\ndata: {\"type\":\"", type, "\",\"sequence_number\":", sequence_++, fields, "}\n\n");
}

std::string ResponseAnswer::PartJson() const {
  return StrCat(R"({"type":"output_text","text":)", Quoted(text_), R"(,"annotations":[],"logprobs":)",
                Array(logprobs_), "}");
}

std::string ResponseAnswer::MessageJson(std::string_view status) const {
  return StrCat(R"({"id":")", message_id_, R"(","type":"message","status":")", status,
                R"(","role":"assistant","content":[)", status == "in_progress" ? "" : PartJson(), "]}");
}

std::string ResponseAnswer::Head(std::string_view status) const {
  return StrCat(R"({"id":")", call_.id, R"(","object":"response","created_at":)", created_, R"(,"status":")", status,
                R"(","error":)", error_, R"(,"incomplete_details":)",
                status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null", R"(,"output":[)");
}

std::string ResponseAnswer::Tail(bool stored) const {
  std::string usage = "null";
  if (has_usage_) {
    usage = StrCat(R"({"input_tokens":)", input_tokens_, R"(,"input_tokens_details":{"cached_tokens":)", cached_tokens_,
                   R"(,"cache_write_tokens":0},"output_tokens":)", output_tokens_,
                   R"(,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":)", input_tokens_ + output_tokens_,
                   "}");
  }
  return StrCat(R"(],"usage":)", usage, R"(,"completed_at":)", completed_ == 0 ? "null" : StrCat(completed_),
                R"(,"store":)", stored ? "true" : "false", R"(,"system_fingerprint":)", Quoted(fingerprint_), echo_, "}");
}

std::string ResponseAnswer::Whole(std::string_view status, bool stored) const {
  return StrCat(Head(status), begun_ ? MessageJson(status == "failed" ? "incomplete" : status) : "", Tail(stored));
}

// Where the text of the answer is.
std::string ResponseAnswer::Place() const {
  return StrCat(R"(,"item_id":")", message_id_, R"(","output_index":0,"content_index":0)");
}

std::string ResponseAnswer::Begun() {
  if (std::exchange(begun_, true) || !call_.generate.stream) return "";
  std::string events =
      Event("response.output_item.added", StrCat(R"(,"output_index":0,"item":)", MessageJson("in_progress")));
  events += Event("response.content_part.added", StrCat(Place(), R"(,"part":)", PartJson()));
  return events;
}

std::string ResponseAnswer::Delta(const v1::GenerateDelta& delta) {
  // A text that is held back, until its characters are complete.
  if (delta.text().empty() && delta.logprobs().empty()) return "";
  std::string events = Begun();
  std::string logprobs;
  if (with_logprobs_) {
    for (const v1::TokenLogprob& token : delta.logprobs()) logprobs += StrCat(",", ChatLogprob(token));
  }
  logprobs_ += logprobs;
  text_ += delta.text();
  if (!call_.generate.stream) return "";
  events += Event("response.output_text.delta", StrCat(Place(), R"(,"delta":)", Quoted(delta.text()),
                                                       R"(,"logprobs":)", Array(logprobs)));
  return events;
}

std::string ResponseAnswer::MessageDone() {
  const std::string text = Quoted(text_);
  std::string events = Event("response.output_text.done",
                             StrCat(Place(), R"(,"text":)", text, R"(,"logprobs":)", Array(logprobs_)));
  events += Event("response.content_part.done", StrCat(Place(), R"(,"part":)", PartJson()));
  events += Event("response.output_item.done", StrCat(R"(,"output_index":0,"item":)", MessageJson(EndStatus())));
  return events;
}

std::string ResponseAnswer::Take(std::size_t, const v1::GenerateReply& reply) {
  switch (reply.event_case()) {
    case v1::GenerateReply::kStart: {
      fingerprint_ = FingerprintOf(reply.start());
      input_tokens_ = reply.start().prompt_tokens();
      cached_tokens_ = reply.start().cached_tokens();
      started_ = true;
      if (!call_.generate.stream) return "";
      const std::string response = StrCat(R"(,"response":)", Whole("in_progress", keeping_.store != nullptr));
      std::string events = Event("response.created", response);
      events += Event("response.in_progress", response);
      return events;
    }
    case v1::GenerateReply::kDelta: return Delta(reply.delta());
    case v1::GenerateReply::kFinish: {
      std::string events = Begun();  // an answer without text is an empty message
      incomplete_ = reply.finish().reason() == v1::FINISH_REASON_LENGTH;
      if (call_.generate.stream) events += MessageDone();
      return events;
    }
    case v1::GenerateReply::kUsage:
      output_tokens_ = reply.usage().completion_tokens();
      has_usage_ = true;
      return "";
    default: return "";
  }
}

// Returns whether the response is in the store.
bool ResponseAnswer::Keep() {
  completed_ = incomplete_ ? 0 : absl::ToUnixSeconds(absl::Now());
  if (keeping_.store == nullptr) return false;
  Turn turn{.previous = keeping_.previous, .input = std::move(call_.input), .output = {}};
  turn.output.push_back({.id = message_id_, .json = MessageJson(EndStatus())});
  return keeping_.store->Add(
      keeping_.owner,
      {.id = call_.id, .head = Head(EndStatus()), .tail = Tail(/*stored=*/true), .turn = nullptr},
      std::move(turn));
}

std::string ResponseAnswer::LastEvents() {
  const bool kept = Keep();
  return Event(StrCat("response.", EndStatus()), StrCat(R"(,"response":)", Whole(EndStatus(), kept)));
}

std::string ResponseAnswer::Whole() {
  const bool kept = Keep();
  return Whole(EndStatus(), kept);
}

std::string ResponseAnswer::ErrorEvents(const ApiError& error) {
  std::string events;
  if (started_) {
    error_ = StrCat(R"({"code":")", FailureCode(error), R"(","message":)", Quoted(error.message), "}");
    events = Event("response.failed", StrCat(R"(,"response":)", Whole("failed", false)));
  }
  // OpenAI documents the fields in the event; its libraries raise the error that they find in `error`.
  Json fields = ErrorFields(error);
  fields.erase("type");  // of the event
  fields["error"] = ErrorFields(error);
  const std::string json = base::Dump(fields);
  events += Event("error", StrCat(",", json.substr(1, json.size() - 2)));
  return events;
}

}  // namespace nibble::openai
