// Debian's abseil has its own string_view, and std::string_view does not convert to it. Our code uses std::string_view;
// this StrCat accepts both.
#pragma once
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble::base {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

namespace internal {
template <typename T>
const T& ForCat(const T& value) {
  return value;
}
inline absl::string_view ForCat(std::string_view value) { return ToAbsl(value); }
inline absl::string_view ForCat(const std::string& value) { return value; }
inline absl::string_view ForCat(const char* value) { return value; }
}  // namespace internal

template <typename... T>
std::string StrCat(const T&... values) {
  return absl::StrCat(internal::ForCat(values)...);
}

}  // namespace nibble::base
