#pragma once
#include <cstddef>
#include <vector>

namespace nibble::http {

// File descriptors kept back, so that a listener can accept a probe while the process has no other left. One thread.
class SpareFiles {
 public:
  explicit SpareFiles(std::size_t count) : count_(count) { Refill(); }
  ~SpareFiles();
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;

  // Frees one for the next accept(). False where none is left.
  bool Release();
  // Takes back as many as it may.
  void Refill();

 private:
  const std::size_t count_;
  std::vector<int> files_;
};

}  // namespace nibble::http
