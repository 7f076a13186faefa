#include "server/base/nearest.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "server/base/strings.h"

namespace nibble::base {
namespace {

// Damerau-Levenshtein distance in which no part of a word is edited twice.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) distance[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) distance[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance[i][j] = std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kMaxLetters = 100;  // the time grows with the square of the length
  if (word.empty() || word.size() > kMaxLetters) return "";
  std::string nearest;
  std::size_t least = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kMaxLetters) continue;
    if (const std::size_t distance = Distance(word, name); distance < least) {
      least = distance;
      nearest = name;
    }
  }
  if (!nearest.empty()) return nearest;
  for (const std::string& name : names) {
    if (name.size() > nearest.size() && word.starts_with(name)) nearest = name;
  }
  return nearest;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& names) {
  const std::string nearest = Nearest(word, names);
  return nearest.empty() ? "" : StrCat("; did you mean ", nearest, "?");
}

std::string DidYouMeanOrList(std::string_view word, const std::vector<std::string>& names) {
  const std::string nearest = DidYouMean(word, names);
  return nearest.empty() ? StrCat("; wanted one of ", absl::StrJoin(names, ", ")) : nearest;
}

}  // namespace nibble::base
