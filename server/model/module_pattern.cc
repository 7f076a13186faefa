#include "server/model/module_pattern.h"

#include <string_view>

#include "re2/re2.h"
#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::StrCat;

constexpr std::int64_t kMaxProgramBytes = 1 << 20;

std::shared_ptr<const re2::RE2> Compile(const std::string& text) {
  re2::RE2::Options options(re2::RE2::Quiet);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);
  options.set_never_capture(true);
  options.set_max_mem(kMaxProgramBytes);
  return std::make_shared<const re2::RE2>(text, options);
}

// Finds the first part of the text that Python and RE2 may read differently. Empty if they read all of it alike.
std::string_view UnsharedSyntax(std::string_view text) {
  bool in_class = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c < ' ' || c > '~') return text.substr(i, 1);
    bool is_anchor = !in_class && (c == '^' || c == '$');
    if (c == '\\') {
      if (i + 1 == text.size() || std::string_view(".-dDwWb").find(text[i + 1]) == std::string_view::npos)
        return text.substr(i, 2);
      ++i;
      is_anchor = text[i] == 'b';
    } else if (in_class) {
      if (c == '[') return text.substr(i, 1);
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (i + 1 < text.size() && text[i + 1] == '^') ++i;
      if (i + 1 < text.size() && text[i + 1] == ']') ++i;  // a ']' in the first place is a member
    } else if (text.substr(i, 2) == "(?" && text.substr(i, 3) != "(?:") {
      return text.substr(i, 3);
    } else if (text.substr(i, 2) == "{,") {
      return text.substr(i, 2);
    }
    // Python refuses to repeat an anchor.
    if (is_anchor && i + 1 < text.size() && std::string_view("*+?{").find(text[i + 1]) != std::string_view::npos)
      return text.substr(i, 2);
  }
  return {};
}

}  // namespace

absl::StatusOr<ModulePattern> ModulePattern::Create(const std::string& text) {
  const auto refuse = [&](std::string_view wanted) {
    return absl::InvalidArgumentError(StrCat("is \"", text.substr(0, 64), "\", wanted ", wanted));
  };
  if (text.empty() || text.size() > kMaxPatternBytes) {
    return refuse(StrCat("a regular expression of 1 to ", kMaxPatternBytes, " bytes"));
  }
  const std::string_view unshared = UnsharedSyntax(text);
  if (!unshared.empty()) {
    return refuse(StrCat("a regular expression without \"", unshared,
                         "\": use letters, digits and . | ( ) (?: [ ] ^ $ * + ? {m,n} \\. \\- \\d \\D \\w \\W \\b"));
  }
  ModulePattern pattern;
  pattern.text_ = text;
  pattern.path_ = Compile(text);
  if (!pattern.path_->ok()) return refuse(StrCat("a regular expression: ", pattern.path_->error()));
  pattern.end_ = Compile(StrCat("(?:.*\\.)?(?:", text, ")"));
  if (!pattern.end_->ok()) return refuse(StrCat("a simpler regular expression: ", pattern.end_->error()));
  return pattern;
}

bool ModulePattern::MatchesPath(const std::string& path) const { return re2::RE2::FullMatch(path, *path_); }
bool ModulePattern::MatchesEnd(const std::string& path) const { return re2::RE2::FullMatch(path, *end_); }

}  // namespace nibble::model
