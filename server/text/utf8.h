// UTF-8 functions for tokens, which may end inside a character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::text {

// Appends the whole characters at the front of `bytes` to `text`, with U+FFFD for each
// maximal invalid part (Unicode 15, 3.9, as Rust's from_utf8_lossy). Returns the number
// of bytes consumed. The rest, at most three bytes, is the beginning of a character.
std::size_t TakeWholeCharacters(std::string_view bytes, std::string* text);

bool IsValidUtf8(std::string_view bytes);

// Appends `value` as a JSON string with its quotes. Requires valid UTF-8.
void AppendJsonString(std::string_view value, std::string* json);

}  // namespace nibble::text
