// Finds stop strings in generated text, and never shows text that would have to be taken back.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::serve {

// One thread.
class StopMatcher {
 public:
  // No stop string is empty. include_stop: the matched string itself is shown too.
  StopMatcher(std::vector<std::string> stops, bool include_stop)
      : stops_(std::move(stops)), include_stop_(include_stop) {}

  // Adds `text` and returns the text that may be shown: all except the longest suffix that may begin a stop string, or
  // all up to the first match. After a match it returns nothing.
  std::string Push(std::string_view text);
  // Returns the text held back; call when generation ends without a match.
  std::string Flush();

  bool matched() const { return !matched_.empty(); }
  const std::string& matched_stop() const { return matched_; }

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
  std::string matched_;
};

}  // namespace nibble::serve
