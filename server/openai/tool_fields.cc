#include "server/openai/tool_fields.h"

#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::openai {

namespace {

using base::FieldError;
using base::Json;
using base::StrCat;

// Reads `type`, and returns the object `function`, or nullptr after an error.
const Json* ReadTypedFunction(JsonFields& fields) {
  ReadFunctionType(fields, "function");
  const Json* function = fields.Any("function");
  if (function == nullptr) fields.Fail("function", "wanted an object");
  return function;
}

}  // namespace

void ReadFunctionType(JsonFields& fields, const char* otherwise) {
  const std::string type = fields.String("type").value_or(otherwise);
  if (type != "function")
    fields.Fail("type", StrCat("is \"", type, "\", wanted \"function\", the only supported type"));
}

void ReadFunction(JsonFields& fields, v1::Tool& tool) {
  tool.set_name(fields.String("name").value_or(""));
  if (tool.name().empty()) fields.Fail("name", "is missing or empty, wanted the name of a function");
  tool.set_description(fields.String("description").value_or(""));
  if (const Json* parameters = fields.Any("parameters")) {
    if (!parameters->is_object())
      fields.Fail("parameters", StrCat("is ", TypeName(*parameters), ", wanted a JSON schema"));
    tool.set_parameters(base::Dump(*parameters));
  }
  if (const auto strict = fields.Bool("strict")) tool.set_strict(*strict);
}

absl::Status ParseTools(const Json& tools, std::string_view path, google::protobuf::RepeatedPtrField<v1::Tool>& out) {
  if (!tools.is_array()) return FieldError(path, StrCat("is ", TypeName(tools), ", wanted an array"));
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const std::string at = StrCat(path, "[", i, "].");
    JsonFields fields(tools[i], at);
    const Json* function = ReadTypedFunction(fields);
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    JsonFields read(*function, at + "function.");
    ReadFunction(read, *out.Add());
    NIBBLE_RETURN_IF_ERROR(read.Finish());
  }
  return absl::OkStatus();
}

absl::Status ParseToolChoice(const Json& choice, std::string_view path, v1::GenerateRequest& request) {
  if (choice.is_object()) {
    JsonFields fields(choice, StrCat(path, "."));
    const Json* function = ReadTypedFunction(fields);
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    JsonFields read(*function, StrCat(path, ".function."));
    request.set_required_tool(read.String("name").value_or(""));
    if (request.required_tool().empty()) read.Fail("name", "is missing or empty, wanted the name of a function");
    return read.Finish();
  }
  if (choice == "auto") {
    request.set_tool_choice(v1::TOOL_CHOICE_AUTO);
  } else if (choice == "none") {
    request.set_tool_choice(v1::TOOL_CHOICE_NONE);
  } else if (choice == "required") {
    request.set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  } else {
    return FieldError(path, StrCat("is ", base::Dump(choice),
                                   ", wanted \"auto\", \"none\", \"required\" or an object with a function"));
  }
  return absl::OkStatus();
}

absl::Status ParseToolCalls(const Json& calls, std::string_view path,
                            google::protobuf::RepeatedPtrField<v1::ToolCall>& out) {
  if (!calls.is_array()) return FieldError(path, StrCat("is ", TypeName(calls), ", wanted an array"));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string at = StrCat(path, "[", i, "].");
    JsonFields fields(calls[i], at);
    v1::ToolCall& call = *out.Add();
    call.set_id(fields.String("id").value_or(""));
    fields.Ignore("index");  // some clients send back the pieces of a stream
    const Json* function = ReadTypedFunction(fields);
    NIBBLE_RETURN_IF_ERROR(fields.Finish());
    JsonFields read(*function, at + "function.");
    call.set_name(read.String("name").value_or(""));
    if (call.name().empty()) read.Fail("name", "is missing or empty, wanted the name of a function");
    call.set_arguments(read.String("arguments").value_or(""));
    NIBBLE_RETURN_IF_ERROR(read.Finish());
  }
  return absl::OkStatus();
}

std::string FunctionField(std::string_view field) {
  const std::size_t dot = field.rfind("].");
  const bool of_function = field.starts_with("tools[") || field.find(".tool_calls[") != std::string_view::npos;
  if (!of_function || dot == std::string_view::npos) return std::string(field);
  return StrCat(field.substr(0, dot + 2), "function.", field.substr(dot + 2));
}

}  // namespace nibble::openai
