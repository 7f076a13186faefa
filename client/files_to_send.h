// Selects the files that an import needs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::client {

struct FileToSend {
  std::string local_path;
  std::string name;  // on the server
  std::int64_t size_bytes = 0;
};

// `path` is a .gguf file or a directory. Of a directory: config.json, weights (*.safetensors; with an index, the index
// and only the files that it names), tokenizer*.json, chat_template.jinja, generation_config.json and
// adapter_config.json; without a config, its only .gguf file. No other file is sent. Errors: NotFound, InvalidArgument.
absl::StatusOr<std::vector<FileToSend>> FilesToImport(const std::string& path);

}  // namespace nibble::client
