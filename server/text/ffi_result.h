// Converts results of the Rust crate to C++ types. Included by server/text/*.cc only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/base/strings.h"
#include "server/text/rust/text_ffi.h"

namespace nibble::text {

// Owns the bytes that Rust wrote into an `out` parameter.
class FfiBytes {
 public:
  FfiBytes() = default;
  FfiBytes(const FfiBytes&) = delete;
  FfiBytes& operator=(const FfiBytes&) = delete;
  ~FfiBytes() { nibble_bytes_free(bytes_); }

  NibbleBytes* out() { return &bytes_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(bytes_.data), bytes_.size}; }

 private:
  NibbleBytes bytes_{nullptr, 0};
};

inline const std::uint8_t* FfiData(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

inline NibbleText FfiText(std::string_view text) { return {FfiData(text), text.size()}; }

template <typename T>
std::vector<T> CopyAs(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  }
  return values;
}

// The message is `before` and the answer.
inline absl::Status FfiStatus(NibbleTextCode code, const FfiBytes& answer, std::string_view before = "") {
  if (code == NIBBLE_TEXT_OK) return absl::OkStatus();
  const std::string message = base::StrCat(before, answer.view());
  if (code == NIBBLE_TEXT_INVALID) return absl::InvalidArgumentError(message);
  return absl::InternalError(message);
}

// The message begins with `what`, the field at fault.
inline absl::Status FfiStatus(NibbleTextCode code, const char* what, const FfiBytes& answer) {
  return FfiStatus(code, answer, base::StrCat(what, ": "));
}

}  // namespace nibble::text
