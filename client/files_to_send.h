// Which of the user's files an import needs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::client {

struct FileToSend {
  std::string local_path;
  std::string name;  // at the server
  std::int64_t size_bytes = 0;
};

// `path` is a .gguf file, or a directory: then its config.json, weights (*.safetensors; where there is an index, those
// that it names), tokenizer*.json, chat_template.jinja, generation_config.json and adapter_config.json, or, without a
// config, its one .gguf. Nothing else leaves the machine. NotFound, InvalidArgument.
absl::StatusOr<std::vector<FileToSend>> FilesToImport(const std::string& path);

}  // namespace nibble::client
