#include "server/rpc/page.h"

#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

// Prefix that distinguishes a page token from a name passed by mistake.
constexpr std::string_view kAfter = "after:";

absl::Status NotOurs() {
  return base::WithReason(absl::OutOfRangeError("page_token: was not issued by this server"), "PAGE_TOKEN");
}

}  // namespace

absl::StatusOr<std::int64_t> CheckPageSize(std::int64_t page_size) {
  if (page_size == 0) return kDefaultPageSize;
  if (page_size < 1 || page_size > kMaxPageSize) {
    return base::FieldError("page_size", base::StrCat("is ", page_size, ", wanted 1 to ", kMaxPageSize));
  }
  return page_size;
}

absl::StatusOr<std::int64_t> ParsePageToken(const std::string& token) {
  std::int64_t value = 0;
  if (token.empty()) return value;
  constexpr std::size_t kMaxDigits = 18;  // more than any number that the server issues has
  if (token.size() > kMaxDigits || !absl::SimpleAtoi(token, &value) || value < 0) return NotOurs();
  return value;
}

std::string TokenAfter(std::string_view key) { return base::StrCat(kAfter, key); }

absl::StatusOr<std::string> KeyOfToken(const std::string& token) {
  if (token.empty()) return token;
  if (!token.starts_with(kAfter) || token.size() == kAfter.size()) return NotOurs();
  return token.substr(kAfter.size());
}

}  // namespace nibble::rpc
