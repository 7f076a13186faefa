#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"
#include "server/text/tool_format.h"

namespace nibble::model {

// A model's tokenizer and chat template, read from tokenizer.json, tokenizer_config.json and chat_template.jinja of an
// artifact's directory. chat_template is null when the model has none. tool_template renders conversations with tools.
struct TextAssets {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
  std::string template_source;                              // of chat_template; "" without one
  std::string tokenizer_config = "{}";                      // JSON of tokenizer_config.json without its chat_template
  std::shared_ptr<const text::ChatTemplate> tool_template;  // often the same; null without chat_template
  // Of tool_template: how the model writes calls of tools, or why it cannot call tools.
  absl::StatusOr<text::ToolFormat> tool_format = absl::InvalidArgumentError("the model has no chat template");
  std::string digest;  // SHA-256 of the files read; equal digests give equal tokens for equal text
};

// Maximum size of a tokenizer.json, as in the Rust library (server/text/rust/src/tokenizer.rs). Loading one takes
// about 15 times its size in memory; the library refuses one that needs more than 64 MiB plus 256 times its size.
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{64} << 20;

// Errors: NotFound (no tokenizer.json), InvalidArgument (an invalid file; named).
absl::StatusOr<TextAssets> LoadTextAssets(const std::string& directory);

}  // namespace nibble::model
