#include "server/openai/models.h"

#include <utility>

#include "nibble/v1/model_service.pb.h"
#include "server/base/json.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::Json;

constexpr std::int32_t kPageSize = 1000;

// `parent` and `max_model_len` are fields of vLLM's API, which OpenAI's libraries keep as extra fields.
Json ModelJson(const v1::Model& model) {
  Json json = {
      {"id", model.name()}, {"object", "model"}, {"created", model.create_time().seconds()}, {"owned_by", "nibble"}};
  if (!model.base_model().empty()) json["parent"] = model.base_model();
  if (model.architecture().max_positions() > 0) json["max_model_len"] = model.architecture().max_positions();
  return json;
}

void ListPage(std::shared_ptr<Incoming> incoming, const Stubs& stubs, const std::string& page_token,
              std::shared_ptr<Json> models) {
  v1::ListModelsRequest request;
  request.set_page_size(kPageSize);
  request.set_page_token(page_token);
  CallUnary<v1::ListModelsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.models->async()->ListModels(arguments...); },
      [&stubs, models = std::move(models)](const std::shared_ptr<Incoming>& again, v1::ListModelsResponse& page) {
        for (const v1::Model& model : page.models()) {
          if (!model.damaged()) models->push_back(ModelJson(model));
        }
        if (!page.next_page_token().empty()) return ListPage(again, stubs, page.next_page_token(), models);
        again->exchange->Answer(JsonReply(base::Dump({{"object", "list"}, {"data", std::move(*models)}})));
      });
}

}  // namespace

void ListModels(std::shared_ptr<Incoming> incoming, const Stubs& stubs) {
  ListPage(std::move(incoming), stubs, "", std::make_shared<Json>(Json::array()));
}

void GetModel(std::shared_ptr<Incoming> incoming, const std::string& name, const Stubs& stubs) {
  v1::GetModelRequest request;
  request.set_name(name);
  CallUnary<v1::Model>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.models->async()->GetModel(arguments...); },
      [](const std::shared_ptr<Incoming>& again, v1::Model& model) {
        again->exchange->Answer(JsonReply(base::Dump(ModelJson(model))));
      });
}

void DeleteModel(std::shared_ptr<Incoming> incoming, const std::string& name, const Stubs& stubs) {
  v1::DeleteModelRequest request;
  request.set_name(name);
  CallUnary<v1::DeleteModelResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.models->async()->DeleteModel(arguments...); },
      [name](const std::shared_ptr<Incoming>& again, v1::DeleteModelResponse&) {
        again->exchange->Answer(JsonReply(base::Dump({{"id", name}, {"object", "model"}, {"deleted", true}})));
      });
}

}  // namespace nibble::openai
