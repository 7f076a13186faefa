#include "client/cli/columns.h"

#include <algorithm>
#include <ostream>

#include "absl/strings/str_split.h"
#include "client/cli/terminal.h"

namespace nibble::cli {
namespace {

constexpr std::string_view kSeparator = " | ";
constexpr std::string_view kIndent = "  ";

// In UTF-8, the bytes of a character after its first have the form 10xxxxxx.
bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Number of bytes in the first line of at most `width` characters. `text` has no line ends.
std::size_t LineBytes(std::string_view text, std::size_t width) {
  std::size_t end = 0, last_blank = 0;
  for (std::size_t characters = 0; characters < width && end < text.size(); ++characters) {
    if (text[end] == ' ') last_blank = end;
    do {
      ++end;
    } while (end < text.size() && ContinuesCharacter(text[end]));
  }
  const bool breaks_a_word = end < text.size() && text[end] != ' ';
  return breaks_a_word && last_blank > 0 ? last_blank : end;
}

void PrintColumns(std::ostream& out, const std::vector<std::string>& left, const std::vector<std::string>& right,
                  std::size_t width) {
  for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    std::string line = i < left.size() ? left[i] : "";
    line.append(width - std::min(width, Width(line)), ' ');
    line += kSeparator;
    if (i < right.size()) line += right[i];
    out << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
  }
}

}  // namespace

std::vector<std::string> Wrap(std::string_view text, std::size_t width) {
  std::string printable = Printable(text);
  std::replace(printable.begin(), printable.end(), '\t', ' ');
  std::vector<std::string> lines;
  const std::vector<std::string> paragraphs = absl::StrSplit(printable, '\n');
  for (const std::string& paragraph : paragraphs) {
    std::string_view left = paragraph;
    do {
      const std::size_t bytes = LineBytes(left, std::max<std::size_t>(width, 1));
      lines.emplace_back(left.substr(0, bytes));
      left.remove_prefix(bytes);
      if (left.starts_with(' ')) left.remove_prefix(1);  // the line end replaces it
    } while (!left.empty());
  }
  return lines;
}

void PrintBoth(std::ostream& out, const TitledText& left, const TitledText& right, std::size_t width) {
  if (width < kMinColumnsSideBySide) {
    for (const TitledText& text : {left, right}) {
      out << Printable(text.title) << ":\n";
      for (const std::string& line : Wrap(text.text, width - kIndent.size())) out << kIndent << line << '\n';
    }
    return;
  }
  const std::size_t column = (width - kSeparator.size()) / 2;
  PrintColumns(out, Wrap(left.title, column), Wrap(right.title, column), column);
  PrintColumns(out, Wrap(left.text, column), Wrap(right.text, column), column);
}

}  // namespace nibble::cli
