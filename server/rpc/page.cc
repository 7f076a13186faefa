#include "server/rpc/page.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::rpc {

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
  if (token.size() > 18 || !absl::SimpleAtoi(token, &value) || value < 0) {
    return base::WithReason(absl::OutOfRangeError("page_token: is none of this server's"), "PAGE_TOKEN");
  }
  return value;
}

absl::StatusOr<Page> PageOf(std::size_t total, std::int64_t page_size, const std::string& token) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(page_size));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t begin, ParsePageToken(token));
  Page page;
  page.begin = std::min(static_cast<std::size_t>(begin), total);
  page.end = std::min(page.begin + static_cast<std::size_t>(size), total);
  if (page.end < total) page.next_token = std::to_string(page.end);
  return page;
}

}  // namespace nibble::rpc
