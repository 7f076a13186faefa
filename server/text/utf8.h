// UTF-8 as far as tokens need it: a token may end inside a character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::text {

// Moves the whole characters at the front of `bytes` to the end of `text`, with
// U+FFFD for each maximal invalid part (Unicode 15, 3.9, as Rust's
// from_utf8_lossy), and returns how many bytes that took. What is left, at most
// three bytes, is the beginning of a character.
std::size_t TakeWholeCharacters(std::string_view bytes, std::string* text);

bool IsValidUtf8(std::string_view bytes);

// Appends `value` as a JSON string with its quotes. Requires valid UTF-8.
void AppendJsonString(std::string_view value, std::string* json);

}  // namespace nibble::text
