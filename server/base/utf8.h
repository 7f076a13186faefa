// Boundaries and validity of UTF-8 characters; JSON strings. Tokens, pieces of files and cut texts may end inside a
// character.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::base {

// The last position up to `end` that is not within a character; any position up to `end` if the bytes are not UTF-8.
// Requires end <= text.size().
inline std::size_t WholeCharacters(std::string_view text, std::size_t end) {
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end;
}

// Appends the whole characters at the front of `bytes` to `text`, with U+FFFD for each maximal invalid part (Unicode
// 15, 3.9, as Rust's from_utf8_lossy). Returns the number of bytes consumed. The rest, at most three bytes, is the
// beginning of a character.
std::size_t TakeWholeCharacters(std::string_view bytes, std::string* text);

bool IsValidUtf8(std::string_view bytes);

// Appends `value` as a JSON string with its quotes. Requires valid UTF-8.
void AppendJsonString(std::string_view value, std::string* json);

}  // namespace nibble::base
