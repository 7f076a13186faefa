#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/status_macros.h"

namespace nibble::rpc {

inline constexpr std::int64_t kDefaultPageSize = 100;
inline constexpr std::int64_t kMaxPageSize = 1000;

// page_size 0: the default. Errors: InvalidArgument (page_size).
absl::StatusOr<std::int64_t> CheckPageSize(std::int64_t page_size);
// A number that a token of ours holds; 0 for none. Errors: OutOfRange (PAGE_TOKEN), here and below.
absl::StatusOr<std::int64_t> ParsePageToken(const std::string& token);

// The token of the page behind the row of that key, and back; "" for the first page.
std::string TokenAfter(std::string_view key);
absl::StatusOr<std::string> KeyOfToken(const std::string& token);

// A page of a list that is in memory.
struct Page {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string next_token;  // "" on the last page
};

// `all` in ascending order of key_of(row), a string of at least one byte. A page begins behind the last key of the one before:
// rows that come and go meanwhile shift nothing. Errors: those of CheckPageSize and KeyOfToken.
template <typename Row, typename KeyOf>
absl::StatusOr<Page> PageOf(const std::vector<Row>& all, KeyOf key_of, std::int64_t page_size, const std::string& token) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(page_size));
  NIBBLE_ASSIGN_OR_RETURN(const std::string after, KeyOfToken(token));
  const auto begin = std::partition_point(all.begin(), all.end(), [&](const Row& row) { return key_of(row) <= after; });
  Page page;
  page.begin = static_cast<std::size_t>(begin - all.begin());
  page.end = std::min(page.begin + static_cast<std::size_t>(size), all.size());
  if (page.end < all.size()) page.next_token = TokenAfter(key_of(all[page.end - 1]));
  return page;
}

}  // namespace nibble::rpc
