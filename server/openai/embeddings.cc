#include "server/openai/embeddings.h"

#include <bit>
#include <utility>

#include "absl/strings/escaping.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/openai/json_fields.h"
#include "server/openai/sampling_fields.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

static_assert(std::endian::native == std::endian::little, "base64 vectors are little endian");

absl::Status WrongInput() {
  return base::FieldError("input", "wanted a text, token ids, or an array of texts or of token ids");
}

absl::Status AddInput(const Json& input, v1::EmbedRequest& request) {
  if (input.is_string()) {
    request.add_texts(input.get<std::string>());
    return absl::OkStatus();
  }
  if (!input.is_array()) return WrongInput();
  return AddTokenIds(input, *request.add_token_ids()->mutable_ids()) ? absl::OkStatus() : WrongInput();
}

// "texts[3]" and "token_ids[3]" of the gRPC API are elements of `input`.
std::string Renamed(std::string_view field) {
  for (const std::string_view name : {"texts", "token_ids"}) {
    if (field.starts_with(name)) return StrCat("input", field.substr(name.size()));
  }
  return std::string(field);
}

}  // namespace

absl::StatusOr<EmbeddingsCall> ParseEmbeddings(const Json& body) {
  JsonFields fields(body);
  EmbeddingsCall call;
  call.request.set_model(fields.String("model").value_or(""));
  if (call.request.model().empty()) fields.Fail("model", "wanted the name of a model");
  const std::string format = fields.String("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    fields.Fail("encoding_format", StrCat("is \"", format, "\", wanted \"float\" or \"base64\""));
  call.base64 = format == "base64";
  fields.Ignore("user");
  fields.Unsupported("dimensions");
  // Not fields of OpenAI's API.
  if (const auto normalize = fields.Bool("normalize")) call.request.set_normalize(*normalize);
  const std::string pooling = fields.String("pooling").value_or("mean");
  if (pooling != "mean" && pooling != "last")
    fields.Fail("pooling", StrCat("is \"", pooling, "\", wanted \"mean\" or \"last\""));
  call.request.set_pooling(pooling == "last" ? v1::POOLING_LAST : v1::POOLING_MEAN);
  const Json* input = fields.Any("input");
  if (input == nullptr) fields.Fail("input", "wanted a text, token ids, or an array of texts or of token ids");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  const bool one = !input->is_array() || (!input->empty() && input->front().is_number());
  if (one) {
    NIBBLE_RETURN_IF_ERROR(AddInput(*input, call.request));
    return call;
  }
  if (input->empty()) return base::FieldError("input", "is an empty array, wanted at least one text");
  for (const Json& each : *input) NIBBLE_RETURN_IF_ERROR(AddInput(each, call.request));
  if (call.request.texts_size() > 0 && call.request.token_ids_size() > 0) return WrongInput();
  return call;
}

std::string EmbeddingsJson(const EmbeddingsCall& call, const v1::EmbedResponse& response) {
  std::string data;
  std::int64_t tokens = 0;
  for (int i = 0; i < response.embeddings_size(); ++i) {
    const v1::Embedding& embedding = response.embeddings(i);
    const std::string_view bytes(reinterpret_cast<const char*>(embedding.values().data()),
                                 static_cast<std::size_t>(embedding.values_size()) * sizeof(float));
    data += StrCat(i == 0 ? "" : ",", R"({"object":"embedding","index":)", i, R"(,"embedding":)",
                   call.base64 ? StrCat("\"", absl::Base64Escape(base::ToAbsl(bytes)), "\"")
                               : base::Dump(Json(embedding.values())),
                   "}");
    tokens += embedding.tokens();
  }
  return StrCat(R"({"object":"list","data":[)", data, R"(],"model":)", base::Dump(Json(call.request.model())),
                R"(,"usage":{"prompt_tokens":)", tokens, R"(,"total_tokens":)", tokens, "}}");
}

void Embed(std::shared_ptr<Incoming> incoming, const Json& body, const Stubs& stubs) {
  auto call = ParseEmbeddings(body);
  if (!call.ok()) return incoming->exchange->Answer(ToReply(FromStatus(call.status())));
  const auto kept = std::make_shared<const EmbeddingsCall>(*std::move(call));
  CallUnary<v1::EmbedResponse>(
      std::move(incoming), kept->request,
      [&stubs](auto... arguments) { stubs.inference->async()->Embed(arguments...); },
      [kept](const std::shared_ptr<Incoming>& again, v1::EmbedResponse& response) {
        again->exchange->Answer(JsonReply(EmbeddingsJson(*kept, response)));
      },
      [](const grpc::Status& status) { return FromStatus(status, Renamed); });
}

}  // namespace nibble::openai
