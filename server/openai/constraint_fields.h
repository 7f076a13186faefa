// The fields of a request that constrain its text: OpenAI's response_format, and those of vLLM's API.
#pragma once
#include <string>

#include "absl/status/status.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

// Reads response_format. Returns the name of the field with the constraint; "" without one. Errors go to `fields`.
std::string ReadResponseFormat(JsonFields& fields, v1::GenerateRequest& request);

// The constraint of a format: {"type": "text" | "json_object"}, or of type "json_schema" with the members name, schema,
// strict and description in `schema`. Every schema is enforced, also without `strict`. `path` is the format's name in
// messages. Errors: InvalidArgument (FIELD_VIOLATION).
absl::Status SetFormat(const base::Json& format, const std::string& path, v1::GenerateRequest& request);

// Reads vLLM's structured_outputs {json, json_object, regex, choice, grammar} and its older names guided_json,
// guided_regex, guided_choice and guided_grammar; a request with two constraints is an error. Returns as
// ReadResponseFormat; `named` is its result.
std::string ReadStructuredOutputs(JsonFields& fields, std::string named, v1::GenerateRequest& request);

}  // namespace nibble::openai
