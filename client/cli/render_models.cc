#include <algorithm>
#include <tuple>
#include <utility>

#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "client/cli/terminal.h"

namespace nibble::cli {

using base::Json;

Json TimeJson(bool has, const google::protobuf::Timestamp& time) { return has ? ToJson(time) : Json(nullptr); }

namespace {

Json WarningsJson(const google::protobuf::RepeatedPtrField<v1::RowWarning>& warnings) {
  Json list = Json::array();
  for (const v1::RowWarning& warning : warnings) {
    list.push_back({{"reason", warning.reason()},
                    {"message", warning.message()},
                    {"row_ids", std::vector<std::int64_t>(warning.row_ids().begin(), warning.row_ids().end())}});
  }
  return list;
}

}  // namespace

Json DatasetJson(const v1::Dataset& dataset) {
  Json json;
  json["name"] = dataset.name();
  json["format"] = Lower(dataset.format());
  json["rows"] = dataset.rows();
  json["bytes"] = dataset.bytes();
  json["sha256"] = dataset.sha256();
  json["create_time"] = TimeJson(dataset.has_create_time(), dataset.create_time());
  json["etag"] = dataset.etag();
  json["warnings"] = WarningsJson(dataset.warnings());
  if (!dataset.file_name().empty()) json["file_name"] = dataset.file_name();
  if (dataset.damaged()) json["damaged"] = true;
  return json;
}

Json PreviewJson(const v1::PreviewDatasetResponse& preview) {
  Json rows = Json::array();
  for (const auto& row : preview.rows()) {
    Json json;
    json["row"] = row.row();
    json["part"] = row.part();
    json["text"] = row.text();
    json["token_ids"] = Json(std::vector<std::int64_t>(row.token_ids().begin(), row.token_ids().end()));
    Json mask = Json::array();
    for (const bool trained : row.trained()) mask.push_back(trained ? 1 : 0);
    json["mask"] = std::move(mask);
    json["tokens"] = Json(std::vector<std::string>(row.token_texts().begin(), row.token_texts().end()));
    json["truncated_tokens"] = row.truncated_tokens();
    rows.push_back(std::move(json));
  }
  Json json;
  json["rows"] = std::move(rows);
  json["total_rows"] = preview.total_rows();
  json["tokens"] = preview.tokens();
  json["trainable_tokens"] = preview.trainable_tokens();
  json["truncated_rows"] = preview.truncated_rows();
  json["dropped_rows"] = preview.dropped_rows();
  json["split_rows"] = preview.split_rows();
  json["warnings"] = WarningsJson(preview.warnings());
  return json;
}

namespace {

// The bytes of a character may belong to several tokens, each of which then has the text U+FFFD. For the group of
// such tokens that begins with token `first`, whose text begins at byte `begin`, returns where the group's text ends
// and the index of the token after the group.
std::pair<std::size_t, int> EndOfGroup(const v1::PreviewRow& row, std::size_t begin, int first) {
  for (int next = first + 1; next < row.token_texts_size(); ++next) {
    const std::string& token = row.token_texts(next);
    if (token.empty() || token.find("\xEF\xBF\xBD") != std::string::npos) continue;
    const std::size_t found = row.text().find(token, begin);
    if (found != std::string::npos) return {found, next};
  }
  return {row.text().size(), row.token_texts_size()};
}

}  // namespace

std::string MarkedText(const v1::PreviewRow& row, std::string_view open, std::string_view close) {
  std::string out;
  bool marked = false;
  const auto mark = [&](bool trained) {
    if (trained != marked) out += trained ? open : close;
    marked = trained;
  };
  const std::string& text = row.text();
  std::size_t at = 0;
  for (int i = 0; i < row.token_texts_size();) {
    const std::string& token = row.token_texts(i);
    std::size_t end = at + token.size();
    int next = i + 1;
    if (text.compare(at, token.size(), token) != 0) std::tie(end, next) = EndOfGroup(row, at, i);
    if (end > at) {
      mark(std::any_of(row.trained().begin() + i, row.trained().begin() + std::min(next, row.trained_size()),
                       [](bool t) { return t; }));
      out += Printable(std::string_view(text).substr(at, end - at));
    }
    at = end;
    i = next;
  }
  mark(false);
  return out;
}

Json ModelJson(const v1::Model& model) {
  Json json;
  json["name"] = model.name();
  json["format"] = Lower(model.format());
  json["digest"] = model.digest();
  json["bytes"] = model.bytes();
  json["parameters"] = model.parameters();
  json["architecture"] = model.has_architecture() ? ToJson(model.architecture()) : Json(nullptr);
  json["base_model"] = model.base_model();
  json["base_digest"] = model.base_digest();
  json["origin"] = Lower(model.origin());
  json["source"] = model.source();
  json["determinism"] = Upper(model.determinism());
  json["tokenizer_digest"] = model.tokenizer_digest();
  json["has_chat_template"] = model.has_chat_template();
  json["trained_format"] = Lower(model.trained_format());
  json["act_outliers"] = model.act_outliers();
  json["activations"] = Lower(model.activations());
  if (model.nf4_block() != 0) {
    json["nf4_block"] = model.nf4_block();
    json["double_quant"] = model.double_quant();
    if (model.double_quant()) json["scaler_block"] = model.scaler_block();
  }
  json["head_format"] = Lower(model.head_format());
  json["record_rows"] = model.record_rows();
  json["recorded_by"] = model.recorded_by();
  json["loaded"] = model.loaded();
  json["create_time"] = TimeJson(model.has_create_time(), model.create_time());
  json["etag"] = model.etag();
  if (model.damaged()) json["damaged"] = true;
  json["conversion"] = model.has_conversion() ? ToJson(model.conversion()) : Json(nullptr);
  return json;
}

Json ResidentsJson(const v1::Residents& residents) {
  Json models = Json::array();
  for (const auto& model : residents.models()) {
    Json json;
    json["name"] = model.name();
    json["format"] = Lower(model.format());
    json["digest"] = model.digest();
    json["device"] = ToJson(model.device());
    json["bytes"] = model.bytes();
    json["active_requests"] = model.active_requests();
    json["load_time"] = TimeJson(model.has_load_time(), model.load_time());
    models.push_back(std::move(json));
  }
  Json json;
  json["models"] = std::move(models);
  json["weights_bytes"] = residents.weights_bytes();
  json["kv_bytes"] = residents.kv_bytes();
  return json;
}

Json VerifyJson(const std::string& model, const v1::VerifyModelResponse& verify) {
  Json json;
  json["equal"] = verify.equal();
  json["rows"] = verify.rows();
  json["differing_rows"] = verify.differing_rows();
  json["first_difference"] = verify.has_first_difference() ? ToJson(verify.first_difference()) : Json(nullptr);
  json["recorded_by"] = verify.recorded_by();
  json["device"] = Lower(verify.device());
  json["digest"] = verify.digest();
  json["model"] = model;
  return json;
}

Json FilesJson(const std::vector<v1::FileEntry>& files) {
  Json list = Json::array();
  for (const auto& file : files) list.push_back(ToJson(file));
  return list;
}

Json ServerInfoJson(const v1::ServerInfo& info) { return ToJson(info); }

Json ServerLoadJson(const v1::ServerLoad& load) {
  Json json = ToJson(load);
  json["residents"] = ResidentsJson(load.residents());
  return json;
}

}  // namespace nibble::cli
