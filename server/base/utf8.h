// Boundaries of UTF-8 characters.
#pragma once
#include <cstddef>
#include <string_view>

namespace nibble::base {

// The last position up to `end` that is not within a character; 0 if the bytes are not UTF-8. Requires end <=
// text.size().
inline std::size_t WholeCharacters(std::string_view text, std::size_t end) {
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

}  // namespace nibble::base
