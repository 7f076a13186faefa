#include "tests/support/fake_api_objects.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace nibble::testing {

namespace {

using base::Json;

std::string Decode(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// The parts of "a=b<separator>c=d".
std::map<std::string, std::string> Pairs(const std::string& text, char separator) {
  std::map<std::string, std::string> pairs;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    const std::string pair = text.substr(begin, end - begin);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    pairs[pair.substr(0, equals)] = equals < pair.size() ? pair.substr(equals + 1) : "";
    begin = end + 1;
  }
  return pairs;
}

std::string CollectionOf(const Json& object) {
  const std::string api = object.at("apiVersion").get<std::string>();
  std::string kind = object.at("kind").get<std::string>();
  kind[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(kind[0])));
  return (api == "v1" ? "/api/v1" : "/apis/" + api) + "/namespaces/" +
         object.at("metadata").at("namespace").get<std::string>() + "/" + kind + "s";
}

bool Selected(const Json& object, const ApiTarget& target) {
  const Json labels = object.at("metadata").value("labels", Json::object());
  for (const auto& [key, value] : Pairs(target.Query("labelSelector"), ',')) {
    if (labels.value(key, "") != value || !labels.contains(key)) return false;
  }
  for (const auto& [key, value] : Pairs(target.Query("fieldSelector"), ',')) {
    if (key != "involvedObject.uid") return false;
    if (object.value("involvedObject", Json::object()).value("uid", "") != value) return false;
  }
  return true;
}

ObjectAnswer Failure(int code, const std::string& reason, const std::string& message) {
  return {code, StatusObject(code, reason, message)};
}

ObjectAnswer NotFound(const ApiTarget& target) { return Failure(404, "NotFound", "\"" + target.name + "\" not found"); }

std::string Line(const char* type, const Json& object) {
  return base::Dump(Json{{"type", type}, {"object", object}}) + "\n";
}

}  // namespace

ApiTarget ParseTarget(const std::string& target) {
  ApiTarget parsed;
  const std::size_t question = std::min(target.find('?'), target.size());
  const std::string path = target.substr(0, question);
  for (const auto& [key, value] : Pairs(target.substr(std::min(question + 1, target.size())), '&'))
    parsed.query[key] = Decode(value);
  // .../namespaces/NAMESPACE/COLLECTION[/NAME]: moves `end` three slashes on, to the one before NAME.
  std::size_t end = path.find("/namespaces/");
  for (int i = 0; i < 3 && end != std::string::npos; ++i) end = path.find('/', end + 1);
  parsed.collection = path.substr(0, end);
  if (end != std::string::npos) parsed.name = path.substr(end + 1);
  return parsed;
}

Json ApiObject(const std::string& kind, const std::string& name, const std::map<std::string, std::string>& labels) {
  return {{"apiVersion", kind == "Job" ? "batch/v1" : "v1"},
          {"kind", kind},
          {"metadata", {{"name", name}, {"namespace", "ml"}, {"labels", labels}}}};
}

Json StatusObject(int code, const std::string& reason, const std::string& message) {
  return {{"kind", "Status"},    {"apiVersion", "v1"}, {"metadata", Json::object()},
          {"status", "Failure"}, {"message", message}, {"reason", reason},
          {"code", code}};
}

void FakeApiObjects::Record(const char* type, const std::string& collection, Json& object) {
  object["metadata"]["resourceVersion"] = std::to_string(++version_);
  history_.push_back({version_, type, collection, object});
}

void FakeApiObjects::Put(Json object) {
  const std::string collection = CollectionOf(object);
  auto& objects = collections_[collection];
  const auto old = objects.find(object["metadata"]["name"].get<std::string>());
  if (!object["metadata"].contains("uid")) {
    object["metadata"]["uid"] = old != objects.end() ? old->second["metadata"]["uid"].get<std::string>()
                                                     : "uid-" + std::to_string(++num_created_);
  }
  Record(old != objects.end() ? "MODIFIED" : "ADDED", collection, object);
  const std::string name = object["metadata"]["name"];
  objects[name] = std::move(object);
}

ObjectAnswer FakeApiObjects::Create(const ApiTarget& target, Json object) {
  const std::string before = "/namespaces/";
  const auto space = target.collection.find(before) + before.size();
  object["metadata"]["namespace"] = target.collection.substr(space, target.collection.find('/', space) - space);
  const std::string name = object["metadata"].value("name", "");
  if (name.empty() || CollectionOf(object) != target.collection) return Failure(422, "Invalid", "wrong object");
  if (collections_[target.collection].contains(name))
    return Failure(409, "AlreadyExists", "\"" + name + "\" already exists");
  Put(std::move(object));
  return {201, collections_[target.collection][name]};
}

ObjectAnswer FakeApiObjects::Get(const ApiTarget& target) const {
  const auto objects = collections_.find(target.collection);
  if (objects == collections_.end() || !objects->second.contains(target.name)) return NotFound(target);
  return {200, objects->second.at(target.name)};
}

ObjectAnswer FakeApiObjects::List(const ApiTarget& target) const {
  const std::string limit = target.Query("limit");
  const std::size_t max = limit.empty() ? SIZE_MAX : std::stoull(limit);
  // The token of the next page is "VERSION:NAME": the version of the first page and the name of the last listed object.
  const std::string token = target.Query("continue");
  const std::size_t colon = token.find(':');
  const std::string version = token.empty() ? std::to_string(version_) : token.substr(0, colon);
  if (std::stoull(version) < forgotten_) return Failure(410, "Expired", "the continue token has expired");
  Json items = Json::array();
  Json metadata = {{"resourceVersion", version}};
  const auto objects = collections_.find(target.collection);
  if (objects != collections_.end()) {
    auto at = token.empty() ? objects->second.begin() : objects->second.upper_bound(token.substr(colon + 1));
    for (; at != objects->second.end() && items.size() < max; ++at) {
      if (!Selected(at->second, target)) continue;
      items.push_back(at->second);
      if (items.size() == max && std::next(at) != objects->second.end())
        metadata["continue"] = version + ":" + at->first;
    }
  }
  return {200, {{"kind", "List"}, {"apiVersion", "v1"}, {"metadata", metadata}, {"items", items}}};
}

ObjectAnswer FakeApiObjects::Delete(const ApiTarget& target, const Json& options) {
  auto& objects = collections_[target.collection];
  const auto found = objects.find(target.name);
  if (found == objects.end()) return NotFound(target);
  Json object = found->second;
  const Json conditions = options.is_object() ? options.value("preconditions", Json::object()) : Json::object();
  if (conditions.contains("uid") && conditions["uid"] != object["metadata"]["uid"])
    return Failure(409, "Conflict", "the UID in the precondition does not match");
  objects.erase(found);
  Record("DELETED", target.collection, object);
  return {200, object};
}

std::string FakeApiObjects::Expired() {
  return Line("ERROR", StatusObject(410, "Expired", "too old resource version"));
}

std::string FakeApiObjects::EventsSince(const ApiTarget& target, std::uint64_t version) const {
  std::string lines;
  for (const Change& change : history_) {
    if (change.version > version && change.collection == target.collection && Selected(change.object, target))
      lines += Line(change.type, change.object);
  }
  return lines;
}

std::string FakeApiObjects::Bookmark() const {
  return Line("BOOKMARK", {{"metadata", {{"resourceVersion", std::to_string(version_)}}}});
}

void FakeApiObjects::Forget() {
  history_.clear();
  forgotten_ = ++version_;
}

}  // namespace nibble::testing
