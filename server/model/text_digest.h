#pragma once
#include <string>

namespace nibble::model {

// TextAssets::digest from the SHA-256 (hex) of tokenizer.json, tokenizer_config.json and chat_template.jinja; "": no
// such file.
std::string TextDigest(const std::string& tokenizer_sha256, const std::string& config_sha256,
                       const std::string& template_sha256);

}  // namespace nibble::model
