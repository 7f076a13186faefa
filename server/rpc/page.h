#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace nibble::rpc {

inline constexpr std::int64_t kDefaultPageSize = 100;
inline constexpr std::int64_t kMaxPageSize = 1000;

// A page of a list that is in memory; tokens are positions.
struct Page {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string next_token;  // "" on the last page
};

// page_size 0: the default. Errors: InvalidArgument (page_size), OutOfRange (PAGE_TOKEN).
absl::StatusOr<Page> PageOf(std::size_t total, std::int64_t page_size, const std::string& token);
absl::StatusOr<std::int64_t> CheckPageSize(std::int64_t page_size);
// A number that a token of ours holds; 0 for none.
absl::StatusOr<std::int64_t> ParsePageToken(const std::string& token);

}  // namespace nibble::rpc
