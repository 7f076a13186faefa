#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace nibble::model {

// What turns words into a model's tokens: read from tokenizer.json, tokenizer_config.json and chat_template.jinja of an
// artifact's directory. The template is null where the model has none.
struct TextAssets {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;
  std::string digest;  // SHA-256 of the files that they were read from: the same tokens for the same text
};

// Of a tokenizer.json. The Rust library's own bound (server/text/rust/src/tokenizer.rs): it lets a load take 256 times as much.
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{64} << 20;

// Errors: NotFound (no tokenizer.json), InvalidArgument (a file that is not what it should be; named).
absl::StatusOr<TextAssets> LoadTextAssets(const std::string& directory);

}  // namespace nibble::model
