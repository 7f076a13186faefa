// The only includer of nlohmann-json: parsing never throws past here, and nesting is bounded.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::base {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// InvalidArgument with the byte offset on malformed text, on duplicate keys of one object and on nesting deeper than
// max_depth.
absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth = kMaxJsonDepth);

// Compact text; invalid UTF-8 is replaced by U+FFFD instead of thrown over. indent >= 0 for people.
std::string Dump(const Json& value, int indent = -1);
// Compact text with the keys of every object in order: the same for equal values, whoever filled them. For digests.
std::string DumpSorted(const Json& value);

// Typed reads that name the field in the error. `where` is what the message calls the document.
absl::StatusOr<std::int64_t> GetInt(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<double> GetNumber(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<std::string> GetString(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<bool> GetBool(const Json& object, std::string_view key, std::string_view where);
// As above, with a value for an absent or null key.
absl::StatusOr<std::int64_t> GetInt(const Json& object, std::string_view key, std::string_view where, std::int64_t absent);
absl::StatusOr<double> GetNumber(const Json& object, std::string_view key, std::string_view where, double absent);
absl::StatusOr<std::string> GetString(const Json& object, std::string_view key, std::string_view where, std::string absent);
absl::StatusOr<bool> GetBool(const Json& object, std::string_view key, std::string_view where, bool absent);

}  // namespace nibble::base
