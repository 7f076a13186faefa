// Texts broken into lines and set side by side, for people.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

inline constexpr std::size_t kMinColumnsSideBySide = 60;

// Breaks a text into lines of at most `width` characters, at blanks if possible. Keeps the line ends of the text, and only
// its printable characters. An empty text is one empty line.
std::vector<std::string> Wrap(std::string_view text, std::size_t width);

struct TitledText {
  std::string_view title, text;
};

// Prints both texts under their titles: in two columns, or one below the other if `width` is less than
// kMinColumnsSideBySide.
void PrintBoth(std::ostream& out, const TitledText& left, const TitledText& right, std::size_t width);

}  // namespace nibble::cli
