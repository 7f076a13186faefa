// Suggestions for names that a user spelt wrongly.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

// The name that `word` most likely means, or "" if none comes near: the one with the fewest letters to insert, delete,
// replace or swap with their neighbour (at most a third of the letters of `word`, but one in any case), else the
// longest name that `word` begins with. Of equals, the first.
std::string Nearest(std::string_view word, const std::vector<std::string>& names);
// For the end of a message: "; did you mean NAME?", or "".
std::string DidYouMean(std::string_view word, const std::vector<std::string>& names);
// The same, or "; wanted one of NAME, NAME, ..." if none comes near.
std::string DidYouMeanOrList(std::string_view word, const std::vector<std::string>& names);

}  // namespace nibble::cli
