#include "server/serve/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace nibble::serve {

std::string StopMatcher::Push(std::string_view text) {
  if (matched()) return "";
  held_.append(text);
  std::size_t at = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t found = held_.find(stop);
    // The match that begins first wins; of two that begin together, the one listed first.
    if (found != std::string::npos && (at == std::string::npos || found < at)) {
      at = found;
      matched_ = stop;
    }
  }
  if (matched()) return std::exchange(held_, "").substr(0, at + (include_stop_ ? matched_.size() : 0));
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        keep = n;
        break;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace nibble::serve
