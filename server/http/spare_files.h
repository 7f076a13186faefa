#pragma once
#include <cstddef>
#include <vector>

namespace nibble::http {

// Reserved file descriptors that let a listener accept a probe when the process has no other left. One thread.
class SpareFiles {
 public:
  explicit SpareFiles(std::size_t count) : count_(count) { Refill(); }
  ~SpareFiles();
  SpareFiles(const SpareFiles&) = delete;
  SpareFiles& operator=(const SpareFiles&) = delete;

  // Frees one for the next accept(). False: none is left.
  bool Release();
  // Reserves descriptors again, up to `count`, as far as the process can get them.
  void Refill();

 private:
  const std::size_t count_;
  std::vector<int> files_;
};

}  // namespace nibble::http
