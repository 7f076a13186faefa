#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>

#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/leaks.h"

namespace nibble::fuzz {

namespace {

// Undoes those JSON escapes that can occur in a leak, because a refusal quotes the unescaped text.
std::string Unescaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view digits = text.substr(std::min(at + 4, text.size()), 2);
    if (text[at] != '\\' || at + 1 == text.size()) {
      out += text[at];
    } else if (text.substr(at, 4) == "\\u00" && digits.size() == 2 &&
               std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; })) {
      out += static_cast<char>(std::strtol(std::string(digits).c_str(), nullptr, 16));
      at += 5;
    } else {
      out += text[++at];
    }
  }
  return out;
}

bool Quotes(std::string_view input, std::string_view words) {
  return input.find(words) != std::string_view::npos || Unescaped(input).find(words) != std::string::npos;
}

}  // namespace

void ExpectClean(const absl::Status& status, std::string_view input) {
  if (status.ok()) return;
  testing_support::ForEachText(rpc::ToRpcStatus(status), [&](const std::string& text) {
    for (const std::string_view leak : testing_support::FindLeaks(text)) {
      if (Quotes(input, leak)) continue;
      std::fprintf(stderr, "fuzz: \"%s\" in: %s\n", std::string(leak).c_str(), text.c_str());
      Expect(false, "a refusal reveals no internals of the server");
    }
  });
}

}  // namespace nibble::fuzz
