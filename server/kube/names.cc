#include "server/kube/names.h"

#include <algorithm>

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::kube {

namespace {

using base::StrCat;

constexpr std::size_t kMaxName = 63;     // bytes; RFC 1123
constexpr std::size_t kMaxPrefix = 253;  // bytes, of a label's key
constexpr std::size_t kMaxShown = 100;   // bytes of a refused text in a message

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsAlphanumeric(char c) { return IsLowerOrDigit(c) || (c >= 'A' && c <= 'Z'); }

// Whether `text` has 1 to `max` bytes, of which the first and the last satisfy `is_end`, and each other one satisfies
// `is_end` or is in `inner`.
bool Matches(std::string_view text, std::size_t max, bool (*is_end)(char), std::string_view inner) {
  return !text.empty() && text.size() <= max && is_end(text.front()) && is_end(text.back()) &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_end(c) || inner.find(c) != std::string_view::npos; });
}

absl::Status Refused(std::string_view what, std::string_view text, std::string_view wanted) {
  return absl::InvalidArgumentError(
      StrCat(what, ": \"", PercentEncode(text.substr(0, kMaxShown)), "\", wanted ", wanted));
}

constexpr char kWantedLabel[] = "at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends";

}  // namespace

absl::Status CheckName(std::string_view name, std::string_view what) {
  if (Matches(name, kMaxName, IsLowerOrDigit, "-")) return absl::OkStatus();
  return Refused(what, name, "1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends (RFC 1123)");
}

absl::Status CheckLabelKey(std::string_view key) {
  const std::size_t slash = key.find('/');
  const bool has_prefix = slash != std::string_view::npos;
  const std::string_view name = has_prefix ? key.substr(slash + 1) : key;
  const bool prefix_ok = !has_prefix || Matches(key.substr(0, slash), kMaxPrefix, IsLowerOrDigit, "-.");
  if (prefix_ok && Matches(name, kMaxName, IsAlphanumeric, "-_.")) return absl::OkStatus();
  return Refused("label key", key,
                 "an optional prefix \"example.com/\", then 1 to 63 letters, digits, '-', '_' or '.', with a letter or "
                 "digit at both ends");
}

absl::Status CheckLabelValue(std::string_view value) {
  if (value.empty() || Matches(value, kMaxName, IsAlphanumeric, "-_.")) return absl::OkStatus();
  return Refused("label value", value, kWantedLabel);
}

absl::StatusOr<std::string> LabelSelector(const Labels& labels) {
  std::string selector;
  for (const auto& [key, value] : labels) {
    NIBBLE_RETURN_IF_ERROR(CheckLabelKey(key));
    NIBBLE_RETURN_IF_ERROR(CheckLabelValue(value));
    selector += StrCat(selector.empty() ? "" : ",", key, "=", value);
  }
  return PercentEncode(selector);
}

std::string PercentEncode(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    if (IsAlphanumeric(c) || std::string_view("-_.~").find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

}  // namespace nibble::kube
