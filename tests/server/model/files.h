// For tests that use model files: a temporary directory, the golden folder, raw safetensors bytes.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "server/base/files.h"

namespace nibble::model {

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = ::testing::TempDir() + "/nibble_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string Golden(const std::string& name) {
  return std::string(NIBBLE_SOURCE_DIR "/tests/golden/model/") + name;
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string LittleEndian64(std::uint64_t value) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((value >> (8 * i)) & 0xff);
  return out;
}

inline std::string RawSafetensors(const std::string& header, std::size_t data_bytes) {
  return LittleEndian64(header.size()) + header + std::string(data_bytes, '\1');
}

}  // namespace nibble::model
