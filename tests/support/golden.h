// Golden values of kernels: text files of lines `name dtype hex`, where hex is the little-endian bytes of the values.
// tests/golden/kernels/make_kernel_golden_*.py write the files. Lines that begin with # name the source of the values.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace nibble::support {

class Golden {
 public:
  // path is relative to the repository. Throws if the file cannot be read: a test without its golden must fail.
  explicit Golden(const std::string& path) {
    std::ifstream file(std::string(NIBBLE_SOURCE_DIR "/") + path);
    if (!file) throw std::runtime_error("cannot read golden file " + path);
    for (std::string line; std::getline(file, line);) {
      if (line.empty() || line[0] == '#') continue;
      std::istringstream words(line);
      std::string name, dtype, hex;
      words >> name >> dtype >> hex;
      std::vector<std::uint8_t>& bytes = values_[name];
      for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
        bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
      }
    }
  }

  const std::vector<std::uint8_t>& Bytes(const std::string& name) const {
    const auto it = values_.find(name);
    if (it == values_.end()) throw std::runtime_error("no golden value " + name);
    return it->second;
  }
  template <typename T>
  std::vector<T> Get(const std::string& name) const {
    const std::vector<std::uint8_t>& bytes = Bytes(name);
    std::vector<T> out(bytes.size() / sizeof(T));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
    return out;
  }

 private:
  std::map<std::string, std::vector<std::uint8_t>> values_;
};

}  // namespace nibble::support
