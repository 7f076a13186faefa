// Suggestions for names that a user spelt wrongly.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble::base {

// The name that `word` most likely means, or "". It is the name with the fewest edits (inserted, deleted or replaced
// letters, and swapped neighbours) if there is only one edit, or at most one for every three letters of `word`; else
// the longest name that `word` begins with. Among equally good names, the first.
std::string Nearest(std::string_view word, const std::vector<std::string>& names);
// For the end of a message: "; did you mean NAME?", or "".
std::string DidYouMean(std::string_view word, const std::vector<std::string>& names);
// The same, or "; wanted one of NAME, NAME, ..." if Nearest finds none.
std::string DidYouMeanOrList(std::string_view word, const std::vector<std::string>& names);

}  // namespace nibble::base
