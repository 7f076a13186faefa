// Tools and calls of tools in requests of OpenAI's API.
#pragma once
#include <string_view>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/base/json.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

// `path`: name of the field in errors, without a dot at its end. All errors: InvalidArgument (FIELD_VIOLATION).

// `type`, which must be "function". `otherwise`: the type if the field is absent.
void ReadFunctionType(JsonFields& fields, const char* otherwise);
// name, description, parameters and strict of a function.
void ReadFunction(JsonFields& fields, v1::Tool& tool);
// `tools` of a chat: an array of functions.
absl::Status ParseTools(const base::Json& tools, std::string_view path,
                        google::protobuf::RepeatedPtrField<v1::Tool>& out);
// `tool_choice` of a chat: "auto", "none", "required" or a function's name.
absl::Status ParseToolChoice(const base::Json& choice, std::string_view path, v1::GenerateRequest& request);
// `tool_calls` of an assistant's message.
absl::Status ParseToolCalls(const base::Json& calls, std::string_view path,
                            google::protobuf::RepeatedPtrField<v1::ToolCall>& out);

// The name in a chat of a field of a tool or a call: tools[0].name becomes tools[0].function.name. Others stay.
std::string FunctionField(std::string_view field);

}  // namespace nibble::openai
