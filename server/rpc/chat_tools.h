// Tools and calls of tools in requests and answers.
#pragma once
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/text/tool_parser.h"

namespace nibble::rpc {

// Checks names, schemas and arguments. Errors: InvalidArgument (FIELD_VIOLATION) names the field.
absl::Status CheckTools(const v1::ChatInput& chat);
// Checks tool_choice and required_tool. Errors: as above.
absl::Status CheckToolChoice(const v1::GenerateRequest& request);

// Whether the answer may call tools.
bool MayCallTools(const v1::GenerateRequest& request);
// Whether it may call several.
bool CallsInParallel(const v1::GenerateRequest& request);

// Whether a message has calls of tools.
bool HasToolCalls(const v1::ChatInput& chat);

// The tools and the messages for a chat template, as transformers passes them: JSON arrays. Require CheckTools.
std::string ToolsJson(const v1::ChatInput& chat);
std::string MessagesJson(const v1::ChatInput& chat);

// Sets the content and the pieces of calls. Gives each call that begins an id in the form that the model's template
// accepts.
void SetToolCalls(text::ToolParser::Result result, text::ToolFormat format, v1::GenerateDelta& delta);

}  // namespace nibble::rpc
