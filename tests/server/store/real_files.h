#pragma once
#include <fstream>
#include <string>

#include "server/base/files.h"

namespace nibble::store {

inline base::FileSystem& Files() { return base::RealFileSystem(); }

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace nibble::store
