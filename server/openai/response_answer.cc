#include "server/openai/response_answer.h"

#include <utility>

#include "absl/time/clock.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/messages/tool_calls.h"
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
      num_input_(call_.input.size()),
      message_id_(ItemId("msg", call_.id, num_input_)) {
  const std::string echo = base::Dump(call_.echo);
  echo_ = StrCat(",", echo.substr(1, echo.size() - 2));
}

std::string ResponseAnswer::Event(std::string_view type, std::string_view fields) {
  return StrCat("event: ", type, "\ndata: {\"type\":\"", type, "\",\"sequence_number\":", sequence_++, fields, "}\n\n");
}

std::string ResponseAnswer::PartJson() const {
  return StrCat(R"({"type":"output_text","text":)", Quoted(text_), R"(,"annotations":[],"logprobs":)", Array(logprobs_),
                "}");
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
                R"(,"store":)", stored ? "true" : "false", R"(,"system_fingerprint":)", Quoted(fingerprint_), echo_,
                "}");
}

std::string ResponseAnswer::CallJson(int index, std::string_view status) const {
  const v1::ToolCall& call = calls_[index];
  const bool begins = status == "in_progress";
  return StrCat(R"({"id":")", CallId(index), R"(","type":"function_call","status":")", status, R"(","call_id":)",
                Quoted(call.id()), R"(,"name":)", Quoted(call.name()), R"(,"arguments":)",
                Quoted(begins ? "" : call.arguments()), "}");
}

std::string ResponseAnswer::CallId(int index) const {
  return ItemId("fc", call_.id, num_input_ + 1 + static_cast<std::size_t>(index));
}

std::vector<ResponseItem> ResponseAnswer::Output() const {
  std::vector<ResponseItem> items;
  if (begun_) items.push_back({.id = message_id_, .json = MessageJson(EndStatus())});
  for (int i = 0; i < calls_.size(); ++i) items.push_back({.id = CallId(i), .json = CallJson(i, "completed")});
  return items;
}

std::string ResponseAnswer::Whole(bool stored) const {
  std::string json = Head(EndStatus());
  for (const ResponseItem& item : Output()) json += StrCat(json.ends_with('[') ? "" : ",", item.json);
  return json + Tail(stored);
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
  messages::AddToolCalls(delta, calls_);
  for (const v1::ToolCallDelta& call : delta.tool_calls()) call_bytes_ += call.ByteSizeLong();
  if (with_logprobs_) {
    for (const v1::TokenLogprob& token : delta.logprobs()) new_logprobs_ += StrCat(",", ChatLogprob(token));
  }
  if (delta.text().empty()) return "";  // held back, until its characters are complete, or a call
  std::string events = Begun();
  events += TextDelta(delta.text());
  return events;
}

std::string ResponseAnswer::TextDelta(const std::string& text) {
  text_ += text;
  logprobs_ += new_logprobs_;
  const std::string logprobs = Array(std::exchange(new_logprobs_, ""));
  if (!call_.generate.stream) return "";
  return Event("response.output_text.delta",
               StrCat(Place(), R"(,"delta":)", Quoted(text), R"(,"logprobs":)", logprobs));
}

std::string ResponseAnswer::MessageDone() {
  const std::string text = Quoted(text_);
  std::string events =
      Event("response.output_text.done", StrCat(Place(), R"(,"text":)", text, R"(,"logprobs":)", Array(logprobs_)));
  events += Event("response.content_part.done", StrCat(Place(), R"(,"part":)", PartJson()));
  events += Event("response.output_item.done", StrCat(R"(,"output_index":0,"item":)", MessageJson(EndStatus())));
  return events;
}

// All events of the calls. They come at the end, because a call is known to be one only when it is complete.
std::string ResponseAnswer::CallEvents() {
  std::string events;
  for (int i = 0; i < calls_.size(); ++i) {
    const std::string index = StrCat(R"(,"output_index":)", i + (begun_ ? 1 : 0));
    const std::string place = StrCat(R"(,"item_id":")", CallId(i), "\"", index);
    const std::string arguments = Quoted(calls_[i].arguments());
    events += Event("response.output_item.added", StrCat(index, R"(,"item":)", CallJson(i, "in_progress")));
    events += Event("response.function_call_arguments.delta", StrCat(place, R"(,"delta":)", arguments));
    events += Event("response.function_call_arguments.done",
                    StrCat(place, R"(,"name":)", Quoted(calls_[i].name()), R"(,"arguments":)", arguments));
    events += Event("response.output_item.done", StrCat(index, R"(,"item":)", CallJson(i, "completed")));
  }
  return events;
}

std::string ResponseAnswer::Finish(const v1::GenerateFinish& finish) {
  incomplete_ = finish.reason() == v1::FINISH_REASON_LENGTH;
  std::string events;
  if (calls_.empty()) events = Begun();  // an answer without text is an empty message
  if (begun_ && !new_logprobs_.empty()) events += TextDelta("");
  if (!call_.generate.stream) return "";
  if (begun_) events += MessageDone();
  events += CallEvents();
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
      const std::string response = StrCat(R"(,"response":)", Head("in_progress"), Tail(keeping_.store != nullptr));
      std::string events = Event("response.created", response);
      events += Event("response.in_progress", response);
      return events;
    }
    case v1::GenerateReply::kDelta: return Delta(reply.delta());
    case v1::GenerateReply::kFinish: return Finish(reply.finish());
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
  Turn turn{.previous = keeping_.previous, .input = std::move(call_.input), .output = Output()};
  return keeping_.store->Add(
      keeping_.owner, {.id = call_.id, .head = Head(EndStatus()), .tail = Tail(/*stored=*/true), .turn = nullptr},
      std::move(turn));
}

std::string ResponseAnswer::LastEvents() {
  const bool kept = Keep();
  return Event(StrCat("response.", EndStatus()), StrCat(R"(,"response":)", Whole(kept)));
}

std::string ResponseAnswer::Whole() {
  const bool kept = Keep();
  return Whole(kept);
}

std::string ResponseAnswer::ErrorEvents(const ApiError& error) {
  std::string events;
  if (started_) {
    error_ = StrCat(R"({"code":")", FailureCode(error), R"(","message":)", Quoted(error.message), "}");
    events = Event("response.failed",
                   StrCat(R"(,"response":)", Head("failed"), begun_ ? MessageJson("incomplete") : "", Tail(false)));
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
