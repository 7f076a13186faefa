#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/status_macros.h"

namespace nibble::rpc {

inline constexpr std::int64_t kDefaultPageSize = 100;
inline constexpr std::int64_t kMaxPageSize = 1000;

// page_size 0: the default. Errors: InvalidArgument (page_size).
absl::StatusOr<std::int64_t> CheckPageSize(std::int64_t page_size);
// The number in a page token; 0 for an empty token. Errors, here and below: OutOfRange (PAGE_TOKEN).
absl::StatusOr<std::int64_t> ParsePageToken(const std::string& token);

// TokenAfter: the token of the page that begins after the row with that key. KeyOfToken: its inverse; "" for the first
// page.
std::string TokenAfter(std::string_view key);
absl::StatusOr<std::string> KeyOfToken(const std::string& token);

// A page of a list that is in memory.
struct Page {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string next_token;  // "" on the last page
};

// Counts the bytes of a page's rows, to keep the page within what a client accepts (CallEnvironment::max_page_bytes).
// One thread.
class PageBytes {
 public:
  explicit PageBytes(std::size_t most) : most_(most) {}
  // Adds a row of that size if it fits; false: it does not. The first row always fits.
  bool Take(std::size_t row_bytes) {
    const std::size_t taken = taken_ + row_bytes + kRowOverhead;
    if (taken_ > 0 && taken + kTokenBytes > most_) return false;
    taken_ = taken;
    return true;
  }

 private:
  static constexpr std::size_t kRowOverhead = 8;   // its tag and length, at most
  static constexpr std::size_t kTokenBytes = 512;  // of the next page's token: a name and a prefix
  const std::size_t most_;
  std::size_t taken_ = 0;
};

// `all` must be in ascending order of key_of(row), a string of at least one byte. A page begins after the last key of
// the previous page, so rows that are added or removed meanwhile do not shift it. Errors: those of CheckPageSize and
// KeyOfToken.
template <typename Row, typename KeyOf>
absl::StatusOr<Page> PageOf(const std::vector<Row>& all, KeyOf key_of, std::int64_t page_size,
                            const std::string& token) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t size, CheckPageSize(page_size));
  NIBBLE_ASSIGN_OR_RETURN(const std::string after, KeyOfToken(token));
  const auto begin = std::partition_point(all.begin(), all.end(), [&](const Row& row) { return key_of(row) <= after; });
  Page page;
  page.begin = static_cast<std::size_t>(begin - all.begin());
  page.end = std::min(page.begin + static_cast<std::size_t>(size), all.size());
  if (page.end < all.size()) page.next_token = TokenAfter(key_of(all[page.end - 1]));
  return page;
}

// Adds the messages of PageOf's page to `out`, up to `most_bytes`. Returns the token of the next page. row_of(row)
// returns absl::StatusOr<std::optional<Message>>; nullopt: the row was removed after it was listed. Errors: those of
// PageOf and row_of.
template <typename Row, typename KeyOf, typename RowOf, typename Messages>
absl::StatusOr<std::string> FillPage(const std::vector<Row>& all, KeyOf key_of, std::int64_t page_size,
                                     const std::string& token, std::size_t most_bytes, RowOf row_of, Messages& out) {
  NIBBLE_ASSIGN_OR_RETURN(const Page page, PageOf(all, key_of, page_size, token));
  PageBytes bytes(most_bytes);
  for (std::size_t i = page.begin; i < page.end; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(auto row, row_of(all[i]));
    if (!row.has_value()) continue;
    if (!bytes.Take(row->ByteSizeLong())) return TokenAfter(key_of(all[i - 1]));
    *out.Add() = *std::move(row);
  }
  return page.next_token;
}

}  // namespace nibble::rpc
