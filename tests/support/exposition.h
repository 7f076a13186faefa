// Checks the Prometheus text format (version 0.0.4) at least as strictly as Prometheus does, for tests where promtool
// may be missing. Timestamps, and comments other than HELP and TYPE, are faults here.
#pragma once
#include <cctype>
#include <cstdlib>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "server/base/json.h"
#include "server/base/strings.h"

namespace nibble::testing_support {

class ExpositionLine {
 public:
  explicit ExpositionLine(std::string_view line) : rest_(line) {}
  // "# HELP name text", "# TYPE name kind", or a sample: name{label="value",...} number.
  bool IsValid() {
    if (rest_.empty()) return true;
    if (Take("# HELP ")) return Name(/*with_colon=*/true) && Take(" ") && Escaped("", /*quoted=*/false);
    if (Take("# TYPE ")) {
      if (!Name(/*with_colon=*/true) || !Take(" ")) return false;
      return std::set<std::string_view>{"counter", "gauge", "histogram", "summary", "untyped"}.contains(rest_);
    }
    if (!Name(/*with_colon=*/true)) return false;
    if (Take("{")) {
      while (!Take("}")) {
        if (!Name(/*with_colon=*/false) || !Take("=\"") || !Escaped("\"", /*quoted=*/true)) return false;
        if (!Take(",") && !rest_.starts_with("}")) return false;
      }
    }
    if (!Take(" ")) return false;
    const std::string number(rest_);
    char* end = nullptr;
    std::strtod(number.c_str(), &end);
    return !number.empty() && !std::isspace(static_cast<unsigned char>(number[0])) && *end == '\0';
  }

 private:
  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  bool Name(bool with_colon) {
    std::size_t size = 0;
    for (; size < rest_.size(); ++size) {
      const unsigned char c = static_cast<unsigned char>(rest_[size]);
      const bool fits = std::isalpha(c) || c == '_' || (with_colon && c == ':') || (size > 0 && std::isdigit(c));
      if (!fits || c >= 0x80) break;
    }
    rest_.remove_prefix(size);
    return size > 0;
  }
  // Reads up to `end` (or the end of the line). A backslash may only precede itself, n or, in a label's value, a quote.
  bool Escaped(std::string_view end, bool quoted) {
    while (!rest_.empty()) {
      if (!end.empty() && Take(end)) return true;
      const bool escape = rest_[0] == '\\';
      if (escape &&
          (rest_.size() < 2 || std::string_view(quoted ? "\\n\"" : "\\n").find(rest_[1]) == std::string_view::npos))
        return false;
      rest_.remove_prefix(escape ? 2 : 1);
    }
    return end.empty();
  }

  std::string_view rest_;
};

// Returns "" for a valid exposition: UTF-8 without NUL, every line is valid, no series and no TYPE of a family occurs
// twice, and the last line ends with a newline.
inline std::string ExpositionFault(const std::string& text) {
  if (text.empty() || text.back() != '\n') return "the last line has no newline";
  const auto same = base::ParseJson(base::Dump(base::Json(text)));  // replaces bytes that are not UTF-8
  if (!same.ok() || same->get<std::string>() != text || text.find('\0') != std::string::npos) return "not UTF-8 text";
  std::set<std::string> seen;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!ExpositionLine(line).IsValid()) return base::StrCat("invalid line: ", line);
    if (line.starts_with("# HELP") || line.empty()) continue;
    if (!seen.insert(line.substr(0, line.rfind(' '))).second) return base::StrCat("repeated: ", line);
  }
  return "";
}

}  // namespace nibble::testing_support
