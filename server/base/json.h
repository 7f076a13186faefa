// The only file that includes nlohmann-json. The functions here throw no exceptions, and parsing limits the nesting.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nibble::base {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// InvalidArgument for malformed text (names the byte offset), for text that is not UTF-8, for a key that an object has
// twice (names the key), and for nesting deeper than max_depth.
absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth = kMaxJsonDepth);

// Compact text, or indented text if indent >= 0. Replaces invalid UTF-8 by U+FFFD instead of throwing.
std::string Dump(const Json& value, int indent = -1);
// Compact text with the keys of every object sorted, so equal values give equal text. For digests.
std::string DumpSorted(const Json& value);

// Typed reads of object[key]. InvalidArgument for an absent or null key and for a value of another type; the message
// names `where` (the document), the key and the wanted type.
absl::StatusOr<std::int64_t> GetInt(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<double> GetNumber(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<std::string> GetString(const Json& object, std::string_view key, std::string_view where);
absl::StatusOr<bool> GetBool(const Json& object, std::string_view key, std::string_view where);
// As above, but return `absent` for an absent or null key.
absl::StatusOr<std::int64_t> GetInt(const Json& object, std::string_view key, std::string_view where,
                                    std::int64_t absent);
absl::StatusOr<double> GetNumber(const Json& object, std::string_view key, std::string_view where, double absent);
absl::StatusOr<std::string> GetString(const Json& object, std::string_view key, std::string_view where,
                                      std::string absent);
absl::StatusOr<bool> GetBool(const Json& object, std::string_view key, std::string_view where, bool absent);

}  // namespace nibble::base
