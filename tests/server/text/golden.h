// The files of tests/golden/text, and tokenizers made from them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/base/json.h"
#include "server/text/gguf_tokenizer.h"
#include "server/text/tokenizer.h"

namespace nibble::text {

// Fails the test and returns null if the file is missing or is not JSON.
base::Json ReadGolden(std::string_view file);
// Fails the test and returns "" if the file is missing.
std::string ReadFile(const std::string& path);

// "byte_level" or "sentence_piece" of tiny_vocabularies.json, with llama.cpp's
// name for the pre-tokenizer.
GgufTokenizer TinyGguf(const std::string& vocabulary, const std::string& pre);
// The flags add_bos_token, add_eos_token and add_space_prefix of a golden case.
void ApplyFlags(const base::Json& flags, GgufTokenizer* gguf);

std::unique_ptr<Tokenizer> Load(const GgufTokenizer& gguf);

}  // namespace nibble::text
