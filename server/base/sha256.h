#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace nibble::base {

// Incremental SHA-256. One thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void Update(std::string_view bytes);
  void Update(const void* data, std::size_t size) { Update({static_cast<const char*>(data), size}); }
  std::string HexDigest();  // 64 lower-case hex digits; do not use the object afterwards

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string Sha256Hex(std::string_view bytes);

}  // namespace nibble::base
