#include "server/openai/tokens.h"

#include <utility>

#include "absl/status/statusor.h"
#include "nibble/v1/model_service.pb.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/generate_request.h"
#include "server/openai/json_fields.h"
#include "server/openai/query_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/tool_fields.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::Json;

absl::StatusOr<v1::TokenizeRequest> ParseTokenize(const Json& body, bool* token_texts) {
  JsonFields fields(body);
  v1::TokenizeRequest request;
  request.set_model(fields.String("model").value_or(""));
  if (request.model().empty()) fields.Fail("model", "wanted the name of a model");
  if (const auto add = fields.Bool("add_special_tokens")) request.set_add_special_tokens(*add);
  *token_texts = fields.Bool("return_token_strs").value_or(false);
  const auto generate = fields.Bool("add_generation_prompt");
  const auto prompt = fields.String("prompt");
  const Json* messages = fields.Any("messages");
  const Json* tools = fields.Any("tools");
  if (tools != nullptr && messages == nullptr) fields.Fail("tools", "is only allowed with messages");
  if (prompt.has_value() == (messages != nullptr)) fields.Fail("prompt", "wanted either prompt or messages");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  if (prompt.has_value()) {
    request.set_text(*prompt);
    return request;
  }
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_chat(), ParseMessages(*messages, "messages"));
  if (tools != nullptr) NIBBLE_RETURN_IF_ERROR(ParseTools(*tools, "tools", *request.mutable_chat()->mutable_tools()));
  if (generate.has_value()) request.mutable_chat()->set_add_generation_prompt(*generate);
  return request;
}

absl::StatusOr<v1::DetokenizeRequest> ParseDetokenize(const Json& body) {
  JsonFields fields(body);
  v1::DetokenizeRequest request;
  request.set_model(fields.String("model").value_or(""));
  if (request.model().empty()) fields.Fail("model", "wanted the name of a model");
  const Json* tokens = fields.Array("tokens");
  if (tokens == nullptr) fields.Fail("tokens", "wanted an array of token ids");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  request.set_skip_special_tokens(false);
  for (const Json& token : *tokens) {
    const auto id = TokenId(token);
    if (!id.has_value())
      return base::FieldError("tokens", base::StrCat("has ", base::Dump(token), ", wanted token ids"));
    request.add_token_ids(*id);
  }
  return request;
}

// tokenizer_config.json may write a token as an object with its text in "content"; vLLM's answer has only the text.
Json PlainTokens(const Json& value) {
  if (!value.is_structured()) return value;
  if (const auto content = value.is_object() ? value.find("content") : value.end();
      content != value.end() && content->is_string())
    return *content;
  Json plain = value;
  for (Json& each : plain) each = PlainTokens(each);
  return plain;
}

void TokenizerInfoOf(std::shared_ptr<Incoming> incoming, const std::string& model, const Stubs& stubs) {
  v1::GetTokenizerConfigRequest request;
  request.set_model(model);
  CallUnary<v1::GetTokenizerConfigResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.inference->async()->GetTokenizerConfig(arguments...); },
      [](const std::shared_ptr<Incoming>& again, v1::GetTokenizerConfigResponse& response) {
        again->exchange->Answer(JsonReply(base::Dump(TokenizerInfoJson(response))));
      });
}

}  // namespace

void Tokenize(std::shared_ptr<Incoming> incoming, const Json& body, const Stubs& stubs) {
  bool token_texts = false;
  auto request = ParseTokenize(body, &token_texts);
  if (!request.ok()) return incoming->exchange->Answer(ToReply(FromStatus(request.status())));
  CallUnary<v1::TokenizeResponse>(
      std::move(incoming), *std::move(request),
      [&stubs](auto... arguments) { stubs.inference->async()->Tokenize(arguments...); },
      [token_texts](const std::shared_ptr<Incoming>& again, v1::TokenizeResponse& response) {
        Json json = {{"count", response.token_ids_size()}, {"tokens", response.token_ids()}};
        json["token_strs"] = token_texts ? Json(response.tokens()) : Json(nullptr);
        again->exchange->Answer(JsonReply(base::Dump(json)));
      });
}

void Detokenize(std::shared_ptr<Incoming> incoming, const Json& body, const Stubs& stubs) {
  auto request = ParseDetokenize(body);
  if (!request.ok()) return incoming->exchange->Answer(ToReply(FromStatus(request.status())));
  CallUnary<v1::DetokenizeResponse>(
      std::move(incoming), *std::move(request),
      [&stubs](auto... arguments) { stubs.inference->async()->Detokenize(arguments...); },
      [](const std::shared_ptr<Incoming>& again, v1::DetokenizeResponse& response) {
        again->exchange->Answer(JsonReply(base::Dump({{"prompt", response.text()}})));
      });
}

Json TokenizerInfoJson(const v1::GetTokenizerConfigResponse& response) {
  const auto config = base::ParseJson(response.config_json());
  Json json = config.ok() && config->is_object() ? PlainTokens(*config) : Json::object();
  if (!json.contains("tokenizer_class")) json["tokenizer_class"] = "PreTrainedTokenizerFast";
  json["chat_template"] = response.chat_template().empty() ? Json(nullptr) : Json(response.chat_template());
  return json;
}

void TokenizerInfo(std::shared_ptr<Incoming> incoming, const Stubs& stubs) {
  QueryFields fields(incoming->exchange->head().query);
  const std::string model = fields.Text("model").value_or("");
  if (const absl::Status status = fields.Finish(); !status.ok())
    return incoming->exchange->Answer(ToReply(FromStatus(status)));
  if (!model.empty()) return TokenizerInfoOf(std::move(incoming), model, stubs);
  // vLLM serves one model and its endpoint takes no name.
  v1::ListModelsRequest request;
  request.set_page_size(2);
  CallUnary<v1::ListModelsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.models->async()->ListModels(arguments...); },
      [&stubs](const std::shared_ptr<Incoming>& again, v1::ListModelsResponse& page) {
        if (page.models_size() == 1) return TokenizerInfoOf(again, page.models(0).name(), stubs);
        again->exchange->Answer(ToReply(FromStatus(base::FieldError(
            "model", page.models().empty() ? "there is no model"
                                           : "is missing, wanted the name of one of this server's models"))));
      });
}

}  // namespace nibble::openai
