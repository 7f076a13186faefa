#include "absl/strings/escaping.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {

using base::Json;

Json UsageJson(const v1::Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens();
  json["completion_tokens"] = usage.completion_tokens();
  json["ttft_ms"] = usage.ttft_ms();
  json["prefill_ms"] = usage.prefill_ms();
  json["decode_ms"] = usage.decode_ms();
  json["kernel_launches"] = usage.kernel_launches();
  return json;
}

namespace {

Json Ids(const google::protobuf::RepeatedField<std::int32_t>& ids) {
  return Json(std::vector<std::int32_t>(ids.begin(), ids.end()));
}

// Standard base64, because JSON has no byte strings and a token may be only part of a character.
Json Base64(const std::string& bytes) {
  std::string text;
  absl::Base64Escape(bytes, &text);
  return Json(text);
}

Json TopJson(const v1::TokenLogprob& token) {
  Json list = Json::array();
  for (const auto& top : token.top()) {
    Json json;
    json["token_id"] = top.token_id();
    json["logprob"] = top.logprob();
    json["token"] = Base64(top.token());
    list.push_back(std::move(json));
  }
  return list;
}

std::string TokenText(const std::string& token) {
  return base::StrCat("\"", base::IsValidUtf8(token) ? absl::Utf8SafeCHexEscape(token) : absl::CHexEscape(token), "\"");
}

}  // namespace

Table LogprobTable(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens) {
  Table table({"TOKEN", "ID", "LOGPROB", "ALTERNATIVES"});
  for (const v1::TokenLogprob& token : tokens) {
    std::string alternatives;
    for (const v1::TopLogprob& top : token.top()) {
      if (top.token_id() == token.token_id()) continue;
      alternatives +=
          base::StrCat(alternatives.empty() ? "" : ", ", TokenText(top.token()), " ", HumanNumber(top.logprob(), 4));
    }
    table.Add({TokenText(token.token()), base::StrCat(token.token_id()),
               token.has_logprob() ? HumanNumber(token.logprob(), 4) : "-", alternatives});
  }
  return table;
}

Json TokenLogprobsJson(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens) {
  Json list = Json::array();
  for (const auto& token : tokens) {
    Json json;
    json["token_id"] = token.token_id();
    json["logprob"] = token.has_logprob() ? Json(token.logprob()) : Json(nullptr);
    json["token"] = Base64(token.token());
    json["top"] = TopJson(token);
    list.push_back(std::move(json));
  }
  return list;
}

Json GenerateJson(const v1::GenerateResponse& response, bool logprobs) {
  const v1::GenerateOutput& first = response.outputs(0);
  Json json;
  json["text"] = first.text();
  json["token_ids"] = Ids(first.token_ids());
  json["finish_reason"] = Lower(first.finish().reason());
  json["matched"] = first.finish().matched();
  if (logprobs) json["logprobs"] = TokenLogprobsJson(first.logprobs());
  json["usage"] = UsageJson(response.usage());
  json["model"] = response.start().model_version();
  json["weights_digest"] = response.start().weights_digest();
  json["seed"] = response.start().seed();
  json["cached_tokens"] = response.start().cached_tokens();
  json["queue_ms"] = response.start().queue_ms();
  json["request_id"] = response.start().request_id();
  return json;
}

Json ScoreJson(const v1::ScoreResponse& score) {
  Json ids = Json::array();
  Json bytes = Json::array();
  Json logprobs = Json::array();
  Json top_token_ids = Json::array();
  Json top_logprobs = Json::array();
  Json digests = Json::array();
  bool have_digests = false;
  for (const auto& token : score.tokens()) {
    ids.push_back(token.token_id());
    bytes.push_back(Base64(token.token()));
    logprobs.push_back(token.has_logprob() ? Json(token.logprob()) : Json(nullptr));
    top_token_ids.push_back(token.top().empty() ? Json(nullptr) : Json(token.top(0).token_id()));
    top_logprobs.push_back(token.top().empty() ? Json(nullptr) : TopJson(token));
    digests.push_back(token.logits_digest().empty() ? Json(nullptr) : Json(token.logits_digest()));
    have_digests |= !token.logits_digest().empty();
  }
  Json json;
  json["token_ids"] = std::move(ids);
  json["tokens"] = std::move(bytes);
  json["logprobs"] = std::move(logprobs);
  json["top_token_ids"] = std::move(top_token_ids);
  json["top_logprobs"] = std::move(top_logprobs);
  if (have_digests) json["logits_digests"] = std::move(digests);
  json["mean_loss"] = score.mean_loss();
  json["perplexity"] = score.perplexity();
  json["usage"] = UsageJson(score.usage());
  json["weights_digest"] = score.weights_digest();
  return json;
}

}  // namespace nibble::cli
