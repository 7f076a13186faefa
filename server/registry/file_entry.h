#pragma once
#include <cstdint>
#include <string>

namespace nibble::registry {

// A file of an upload or of an export.
struct FileEntry {
  std::string path;
  std::int64_t size_bytes = 0;
  std::string sha256;
};

}  // namespace nibble::registry
