// Positions where a text may be cut into pieces.
#pragma once
#include <cstddef>
#include <string_view>

namespace nibble::text {

inline bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Whether a run of blanks begins or ends at `at`, so that no word continues across it. Requires 0 < at < text.size().
inline bool IsBlankEdge(std::string_view text, std::size_t at) { return IsBlank(text[at - 1]) != IsBlank(text[at]); }

// The last position up to `end` that is not within a character; 0 if the bytes are not UTF-8. Requires end <= text.size().
inline std::size_t WholeCharacters(std::string_view text, std::size_t end) {
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

}  // namespace nibble::text
