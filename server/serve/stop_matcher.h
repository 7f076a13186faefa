// Watches generated text for stop strings without ever showing text that it would have to take back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace nibble::serve {

// One thread.
class StopMatcher {
 public:
  // include_stop: the matched string itself is shown too.
  StopMatcher(std::vector<std::string> stops, bool include_stop) : stops_(std::move(stops)), include_stop_(include_stop) {}

  // What may be shown now that `text` came: all up to the longest end that a stop string may begin with, or up to the
  // first match. After a match it shows nothing more.
  std::string Push(std::string_view text);
  // What was held back; call when generation ends without a match.
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
