// How a model writes calls of tools.
#pragma once
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_template.h"

namespace nibble::text {

enum class ToolFormat {
  kHermes,        // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3
  kLlama3,        // {"name": ..., "parameters": {...}} as the whole answer, perhaps after <|python_tag|>: Llama 3.x
  kMistralList,   // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]: Mistral, tokenizers up to v7
  kMistralNamed,  // [TOOL_CALLS]name[ARGS]{...}, also with [CALL_ID]id before [ARGS]: Mistral, tokenizers v11 and later
};

inline constexpr std::string_view kHermesBegin = "<tool_call>";
inline constexpr std::string_view kHermesEnd = "</tool_call>";
inline constexpr std::string_view kLlama3Begin = "<|python_tag|>";
inline constexpr std::string_view kMistralBegin = "[TOOL_CALLS]";
inline constexpr std::string_view kMistralArguments = "[ARGS]";
inline constexpr std::string_view kMistralId = "[CALL_ID]";

// The markers of a format. A vocabulary may have them as special tokens.
std::vector<std::string_view> MarkersOf(ToolFormat format);

// Renders a conversation with a tool, and another that ends with a call. Errors: InvalidArgument (the template does not
// render tools, fails on them, or writes calls in another form).
absl::StatusOr<ToolFormat> FindToolFormat(const ChatTemplate& chat_template);

}  // namespace nibble::text
