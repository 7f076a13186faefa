#include "server/openai/constraint_fields.h"

#include <algorithm>
#include <string_view>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

constexpr char kAnyObject[] = R"({"type":"object"})";

// A schema as an object, or as its text.
bool SetSchema(const Json& schema, v1::GenerateRequest& request) {
  if (!schema.is_string() && !schema.is_object() && !schema.is_boolean()) return false;
  request.set_json_schema(schema.is_string() ? schema.get<std::string>() : base::Dump(schema));
  return true;
}

bool SetChoice(const Json& choices, v1::GenerateRequest& request) {
  if (!choices.is_array() || choices.empty()) return false;
  for (const Json& choice : choices) {
    if (!choice.is_string()) return false;
    request.mutable_choice()->add_choices(choice.get<std::string>());
  }
  return true;
}

// A constraint as vLLM names it. Returns false if the value has another type.
bool SetNamed(std::string_view name, const Json& value, v1::GenerateRequest& request) {
  if (name == "json") return SetSchema(value, request);
  if (name == "choice") return SetChoice(value, request);
  if (!value.is_string()) return false;
  if (name == "regex") request.set_regex(value.get<std::string>());
  if (name == "grammar") request.set_lark(value.get<std::string>());
  return true;
}

constexpr std::string_view kNames[] = {"json", "regex", "choice", "grammar"};

}  // namespace

absl::Status SetFormat(const Json& format, const std::string& path, v1::GenerateRequest& request) {
  JsonFields fields(format, StrCat(path, "."));
  const std::string type = fields.String("type").value_or("");
  if (type == "json_object") request.set_json_schema(kAnyObject);
  if (type == "json_schema") {
    const Json* schema = fields.Any("schema");
    if (schema == nullptr || !SetSchema(*schema, request)) fields.Fail("schema", "wanted a JSON schema, an object");
    if (fields.String("name").value_or("").empty()) fields.Fail("name", "is missing or empty");
    for (const char* name : {"strict", "description"}) fields.Ignore(name);
  } else if (type != "json_object" && type != "text") {
    fields.Fail("type", StrCat("is \"", type, "\", wanted \"text\", \"json_object\" or \"json_schema\""));
  }
  return fields.Finish();
}

std::string ReadResponseFormat(JsonFields& fields, v1::GenerateRequest& request) {
  constexpr char kField[] = "response_format";
  const Json* format = fields.Any(kField);
  if (format == nullptr) return "";
  absl::Status status;
  if (format->is_object() && format->contains("json_schema") && format->value("type", Json()) == "json_schema") {
    // The members of json_schema, which the newer API has beside the type.
    const Json& inner = (*format)["json_schema"];
    Json flat = inner.is_object() ? inner : Json::object();
    flat["type"] = "json_schema";
    for (const auto& [key, value] : format->items()) {
      if (key != "type" && key != "json_schema") flat[key] = value;
    }
    status = SetFormat(flat, StrCat(kField, ".json_schema"), request);
  } else {
    status = SetFormat(*format, kField, request);
  }
  fields.FailWith(status);
  return request.constraint_case() == v1::GenerateRequest::CONSTRAINT_NOT_SET ? "" : kField;
}

std::string ReadStructuredOutputs(JsonFields& fields, std::string named, v1::GenerateRequest& request) {
  const auto set = [&](std::string_view name, const Json& value, const std::string& field, JsonFields& reader,
                       std::string_view member) {
    if (!named.empty()) return reader.Fail(member, StrCat("is not allowed with ", named));
    named = field;
    if (!SetNamed(name, value, request)) reader.Fail(member, StrCat("is ", TypeName(value), ", which is no ", name));
  };
  for (const std::string_view name : kNames) {
    const std::string field = StrCat("guided_", name);
    if (const Json* value = fields.Any(field); value != nullptr) set(name, *value, field, fields, field);
  }
  fields.Object("structured_outputs", [&](JsonFields& members) {
    for (const std::string_view name : kNames) {
      const Json* value = members.Any(name);
      if (value != nullptr) set(name, *value, StrCat("structured_outputs.", name), members, name);
    }
    if (members.Bool("json_object").value_or(false)) {
      set("json", Json::parse(kAnyObject), "structured_outputs.json_object", members, "json_object");
    }
  });
  return named;
}

}  // namespace nibble::openai
