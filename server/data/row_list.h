// Rows of a file to report: their number, and the lines of the first few.
#pragma once
#include <cstdint>
#include <vector>

namespace nibble::data {

inline constexpr int kMaxNamedRows = 20;

struct RowList {
  std::int64_t count = 0;
  std::vector<std::int64_t> lines;  // line numbers from 1; at most kMaxNamedRows
  void Add(std::int64_t line);
  void Append(const RowList& later);  // of later lines
};

}  // namespace nibble::data
