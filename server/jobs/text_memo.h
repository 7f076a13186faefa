// Remembers results that depend on a text alone, for rows that lists read repeatedly.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "server/base/mutex.h"
#include "server/base/status_macros.h"

namespace nibble::jobs {

// Holds the results of at most kMaxTexts texts, and forgets all of them when one more is to be added. A text of more
// than kMaxTextBytes is parsed each time. Thread-safe.
template <typename Parsed>
class TextMemo {
 public:
  static constexpr std::size_t kMaxTexts = 2000;  // two of the largest pages of a list
  static constexpr std::size_t kMaxTextBytes = 8 << 10;

  // parse(text) returns absl::StatusOr<Parsed>; an error is returned and not remembered.
  template <typename Parse>
  absl::StatusOr<std::shared_ptr<const Parsed>> Get(const std::string& text, Parse parse) {
    {
      base::MutexLock lock(mutex_);
      if (const auto found = parsed_.find(text); found != parsed_.end()) return found->second;
    }
    NIBBLE_ASSIGN_OR_RETURN(Parsed result, parse(text));
    auto shared = std::make_shared<const Parsed>(std::move(result));
    if (text.size() > kMaxTextBytes) return shared;
    base::MutexLock lock(mutex_);
    if (parsed_.size() >= kMaxTexts) parsed_.clear();
    parsed_[text] = shared;
    return shared;
  }
  std::size_t size() const {
    base::MutexLock lock(mutex_);
    return parsed_.size();
  }

 private:
  mutable base::Mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Parsed>> parsed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::jobs
