// Positions where a text may be cut into pieces.
#pragma once
#include <cstddef>
#include <string_view>

namespace nibble::text {

inline bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Whether a run of blanks begins or ends at `at`, so that no word continues across it. Requires 0 < at < text.size().
inline bool IsBlankEdge(std::string_view text, std::size_t at) { return IsBlank(text[at - 1]) != IsBlank(text[at]); }

}  // namespace nibble::text
