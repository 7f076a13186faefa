// Macros that return early from a function when an absl::Status is not OK.
#pragma once
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define NIBBLE_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status nibble_status_ = (expr); !nibble_status_.ok()) { \
      return nibble_status_;                                          \
    }                                                                 \
  } while (false)

#define NIBBLE_CONCAT_INNER_(a, b) a##b
#define NIBBLE_CONCAT_(a, b) NIBBLE_CONCAT_INNER_(a, b)

// NIBBLE_ASSIGN_OR_RETURN(auto x, F()): sets x to F()'s value, or returns F()'s status.
#define NIBBLE_ASSIGN_OR_RETURN(lhs, expr) \
  NIBBLE_ASSIGN_OR_RETURN_IMPL_(NIBBLE_CONCAT_(nibble_status_or_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): lhs may be a declaration, and statusor is the name generated above.
#define NIBBLE_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)
// NOLINTEND(bugprone-macro-parentheses)
