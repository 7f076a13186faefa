// Regular expressions over module paths ("model.layers.0.self_attn.q_proj"), matched as PEFT matches its own.
#pragma once
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace re2 {
class RE2;
}

namespace nibble::model {

inline constexpr std::size_t kMaxPatternBytes = 256;

// Immutable, so any thread may use it; cheap to copy. RE2 matches in linear time, whatever the pattern.
class ModulePattern {
 public:
  // Accepts syntax that Python's re (in PEFT) and RE2 read in the same way: printable ASCII with . | ( ) (?: [ ] ^ $ *
  // + ? {m} {m,} {m,n}, and the escapes \. \- \d \D \w \W \b. InvalidArgument ("is ..., wanted ...") for anything else.
  static absl::StatusOr<ModulePattern> Create(const std::string& text);

  const std::string& text() const { return text_; }
  // PEFT's rule for target_modules: re.fullmatch(text, path).
  bool MatchesPath(const std::string& path) const;
  // PEFT's rule for rank_pattern and alpha_pattern: re.match("(.*\.)?(text)$", path), so the text matches the path or
  // an end of it that follows a dot.
  bool MatchesEnd(const std::string& path) const;

 private:
  ModulePattern() = default;

  std::string text_;
  std::shared_ptr<const re2::RE2> path_;
  std::shared_ptr<const re2::RE2> end_;
};

}  // namespace nibble::model
