#include "server/openai/responses.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/api_error.h"
#include "server/openai/generate_exchange.h"
#include "server/openai/query_fields.h"
#include "server/openai/response_answer.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

constexpr std::int64_t kMaxItems = 100;  // of a page, as in OpenAI's API
constexpr std::int64_t kDefaultItems = 20;

const std::string& OwnerOf(const Incoming& incoming) { return incoming.exchange->head().fairness_key; }

// nullptr: the error was answered.
std::shared_ptr<const StoredResponse> FindOrAnswer(const Incoming& incoming, const std::string& id,
                                                   ResponseStore& store) {
  auto found = store.Find(OwnerOf(incoming), id);
  if (found == nullptr) {
    incoming.exchange->Answer(ToReply({.status = 404,
                                       .type = "invalid_request_error",
                                       .message = StrCat("Response with id '", id, "' not found."),
                                       .param = "response_id",
                                       .code = "response_not_found"}));
  }
  return found;
}

// Whether the query is wrong; then its error is the answer.
bool Refused(const Incoming& incoming, QueryFields& fields) {
  const absl::Status status = fields.Finish();
  if (!status.ok()) incoming.exchange->Answer(ToReply(FromStatus(status)));
  return !status.ok();
}

}  // namespace

absl::StatusOr<PreparedResponse> PrepareResponse(const Json& body, const std::string& owner, ResponseStore& store,
                                                 std::size_t max_conversation_bytes) {
  const auto find_item = [&](const std::string& id) -> std::optional<ResponseItem> {
    const auto response = store.Find(owner, ResponseIdOf(id));
    const ResponseItem* item = response == nullptr ? nullptr : FindItemOf(*response->turn, id);
    return item == nullptr ? std::nullopt : std::optional(*item);
  };
  PreparedResponse prepared;
  NIBBLE_ASSIGN_OR_RETURN(prepared.call, ParseResponse(body, find_item, max_conversation_bytes));
  const ResponseCall& call = prepared.call;
  if (!store.keeps_any()) {
    const char* why = "this server keeps no responses (--openai_response_ttl_s is 0)";
    if (call.store.value_or(false)) return FieldError("store", StrCat("is true, but ", why));
    if (!call.previous_response_id.empty()) return FieldError("previous_response_id", StrCat("is set, but ", why));
  }
  prepared.conversation_bytes = call.input_bytes;
  if (prepared.conversation_bytes > max_conversation_bytes) {
    return FieldError("input", StrCat("has ", prepared.conversation_bytes, " bytes as stored items, wanted at most ",
                                      max_conversation_bytes));
  }
  if (call.previous_response_id.empty()) return prepared;
  const auto previous = store.Find(owner, call.previous_response_id);
  if (previous == nullptr) {
    return base::WithReason(
        absl::InvalidArgumentError(StrCat("previous_response_id: there is no response \"", call.previous_response_id,
                                          "\"; it may have expired, so send the conversation in input")),
        "FIELD_VIOLATION", {{"field", "previous_response_id"}, {"openai_code", "previous_response_not_found"}});
  }
  prepared.previous = previous->turn;
  prepared.conversation_bytes += prepared.previous->total_bytes;
  if (prepared.conversation_bytes > max_conversation_bytes) {
    return FieldError("previous_response_id", StrCat("the conversation would have ", prepared.conversation_bytes,
                                                     " bytes, wanted at most ", max_conversation_bytes));
  }
  if (prepared.previous->num_turns >= kMaxTurns) {
    return FieldError("previous_response_id", StrCat("the conversation has ", kMaxTurns,
                                                     " responses, the most that are possible; begin a new "
                                                     "one with the items that still matter in input"));
  }
  return prepared;
}

void RunResponse(std::shared_ptr<Incoming> incoming, PreparedResponse prepared, ResponseStore& store,
                 const Stubs& stubs, std::size_t max_answer_bytes) {
  ResponseCall& call = prepared.call;
  if (const absl::Status status = AddMessages(call, prepared.previous.get()); !status.ok())
    return incoming->exchange->Answer(ToReply(FromStatus(status)));
  ResponseKeeping keeping{.owner = OwnerOf(*incoming), .previous = std::move(prepared.previous)};
  if (call.store.value_or(true) && store.keeps_any()) keeping.store = &store;
  GenerateCall generate = call.generate;
  call.generate.prompts.clear();
  auto form = std::make_unique<ResponseAnswer>(std::move(call), std::move(keeping), absl::Now());
  RunGenerate(std::move(incoming), std::move(generate), stubs, max_answer_bytes, std::move(form));
}

void GetResponse(const Incoming& incoming, const std::string& id, ResponseStore& store) {
  QueryFields fields(incoming.exchange->head().query);
  if (fields.Text("stream").value_or("false") != "false")
    fields.Fail("stream", "is not supported: a response is kept when it is complete");
  if (Refused(incoming, fields)) return;
  if (const auto found = FindOrAnswer(incoming, id, store); found != nullptr)
    incoming.exchange->Answer(JsonReply(found->Json()));
}

void DeleteResponse(const Incoming& incoming, const std::string& id, ResponseStore& store) {
  if (FindOrAnswer(incoming, id, store) == nullptr) return;
  store.Erase(OwnerOf(incoming), id);
  incoming.exchange->Answer(JsonReply(base::Dump({{"id", id}, {"object", "response"}, {"deleted", true}})));
}

void CancelResponse(const Incoming& incoming, const std::string& id, ResponseStore& store) {
  if (FindOrAnswer(incoming, id, store) == nullptr) return;
  incoming.exchange->Answer(
      ToReply({.status = 400,
               .type = "invalid_request_error",
               .message = StrCat("Response with id '", id, "' is complete. Only responses that run in the background ",
                                 "can be cancelled; to cancel others, close the connection."),
               .param = "response_id",
               .code = "invalid_value"}));
}

void ListInputItems(const Incoming& incoming, const std::string& id, ResponseStore& store) {
  QueryFields fields(incoming.exchange->head().query);
  const std::string after = fields.Text("after").value_or("");
  const auto limit = static_cast<std::size_t>(fields.Int("limit", 1, kMaxItems).value_or(kDefaultItems));
  const bool ascending = fields.Ascending();
  if (Refused(incoming, fields)) return;
  const auto found = FindOrAnswer(incoming, id, store);
  if (found == nullptr) return;
  std::vector<const ResponseItem*> items;
  for (const Turn* turn : TurnsUpTo(found->turn.get())) {
    for (const ResponseItem& item : turn->input) items.push_back(&item);
    if (turn == found->turn.get()) break;
    for (const ResponseItem& item : turn->output) items.push_back(&item);
  }
  if (!ascending) std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (!after.empty()) {
    begin = std::find_if(items.begin(), items.end(), [&](const ResponseItem* item) { return item->id == after; });
    if (begin == items.end()) {
      return incoming.exchange->Answer(ToReply(FromStatus(
          FieldError("after", StrCat("there is no item \"", after, "\" in this response; list from the beginning")))));
    }
    ++begin;
  }
  const auto end = begin + static_cast<std::ptrdiff_t>(std::min(limit, static_cast<std::size_t>(items.end() - begin)));
  std::string data;
  for (auto it = begin; it != end; ++it) data += StrCat(it == begin ? "" : ",", (*it)->json);
  const auto id_json = [&](auto it) { return begin == end ? Json(nullptr) : Json((*it)->id); };
  incoming.exchange->Answer(
      JsonReply(StrCat(R"({"object":"list","data":[)", data, R"(],"first_id":)", base::Dump(id_json(begin)),
                       R"(,"last_id":)", base::Dump(id_json(end == begin ? end : end - 1)), R"(,"has_more":)",
                       end != items.end() ? "true" : "false", "}")));
}

}  // namespace nibble::openai
