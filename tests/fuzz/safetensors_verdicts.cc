// Prints what our reader says about files, to compare it with another program (tests/e2e/test_safetensors_crate.py).
//   safetensors_verdicts FOLDER      one line of JSON per file, by name: {"file", "error"} for a refused file, else
//                                    {"file", "metadata", "tensors": {NAME: {"dtype", "shape", "sha256" of the bytes}}}
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/base/sha256.h"
#include "server/base/strings.h"
#include "server/model/safetensors.h"

namespace {

using nibble::base::Json;

Json Verdict(const std::string& bytes) {
  const auto header =
      nibble::model::ParseSafetensors({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "file");
  if (!header.ok()) return {{"error", nibble::base::ToStd(header.status().message())}};
  Json tensors = Json::object();
  for (const auto& tensor : header->tensors) {
    const std::string_view data(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    tensors[tensor.name] = {
        {"dtype", tensor.dtype_name}, {"shape", tensor.shape}, {"sha256", nibble::base::Sha256Hex(data)}};
  }
  return {{"metadata", header->metadata}, {"tensors", tensors}};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 || !std::filesystem::is_directory(argv[1])) {
    std::fprintf(stderr, "usage: safetensors_verdicts FOLDER\n");
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad()) {
      std::fprintf(stderr, "safetensors_verdicts: cannot read %s\n", path.c_str());
      return 1;
    }
    Json line = Verdict(bytes);
    line["file"] = path.filename().string();
    std::printf("%s\n", nibble::base::Dump(line).c_str());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "safetensors_verdicts: %s\n", error.what());
  return 1;
}
