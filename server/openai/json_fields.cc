#include "server/openai/json_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/base/error.h"
#include "server/base/nearest.h"
#include "server/base/strings.h"

namespace nibble::openai {

using base::Json;
using base::StrCat;

namespace {
constexpr double kMaxExactInt = 9007199254740992;  // 2^53: larger numbers may have lost digits as a double
}  // namespace

const char* TypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "an array";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

JsonFields::JsonFields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object_.is_object()) {
    const std::string name = path_.empty() ? "body" : path_.substr(0, path_.size() - 1);
    status_ = base::FieldError(name, StrCat("is ", TypeName(object_), ", wanted an object"));
  }
}

void JsonFields::Fail(std::string_view name, std::string_view message) {
  if (status_.ok()) status_ = base::FieldError(StrCat(path_, name), message);
}

void JsonFields::FailWith(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void JsonFields::WrongType(std::string_view name, const Json& value, const char* wanted) {
  Fail(name, StrCat("is ", TypeName(value), ", wanted ", wanted));
}

const Json* JsonFields::Any(std::string_view name) {
  known_.emplace_back(name);
  if (!object_.is_object()) return nullptr;
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> JsonFields::String(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  WrongType(name, *value, "a string");
  return std::nullopt;
}

std::optional<bool> JsonFields::Bool(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  WrongType(name, *value, "true or false");
  return std::nullopt;
}

std::optional<double> JsonFields::Number(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) return value->get<double>();
  WrongType(name, *value, "a number");
  return std::nullopt;
}

std::optional<std::int64_t> JsonFields::Int(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX))
    return value->get<std::int64_t>();
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::trunc(number) == number && std::abs(number) <= kMaxExactInt) return static_cast<std::int64_t>(number);
  }
  if (value->is_number()) {
    Fail(name, StrCat("is ", base::Dump(*value), ", wanted a whole number of 64 bits"));
  } else {
    WrongType(name, *value, "a whole number");
  }
  return std::nullopt;
}

const Json* JsonFields::Array(std::string_view name) {
  const Json* value = Any(name);
  if (value == nullptr || value->is_array()) return value;
  WrongType(name, *value, "an array");
  return nullptr;
}

void JsonFields::Object(std::string_view name, const std::function<void(JsonFields&)>& read) {
  const Json* value = Any(name);
  if (value == nullptr) return;
  JsonFields fields(*value, StrCat(path_, name, "."));
  read(fields);
  FailWith(fields.Finish());
}

void JsonFields::Neutral(std::string_view name, const Json& value) {
  const Json* given = Any(name);
  if (given != nullptr && *given != value)
    Fail(name, StrCat("is not supported; wanted no value, null or ", base::Dump(value)));
}

void JsonFields::Unsupported(std::string_view name) {
  const Json* given = Any(name);
  if (given == nullptr || (given->is_structured() && given->empty())) return;
  Fail(name, "is not supported");
}

absl::Status JsonFields::Finish() {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    Fail(name, StrCat("is not a field of this request", base::DidYouMean(name, known_)));
    break;
  }
  return status_;
}

}  // namespace nibble::openai
