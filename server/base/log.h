// JSON lines on stderr: {"time", "level", "message", fields...}. Texts are escaped; numbers and bools keep their type.
// Callers must not log secrets.
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace nibble::base {

// Value of a field. A double that is not finite becomes null.
struct LogValue {
  // NOLINTBEGIN(google-explicit-constructor): callers list plain values.
  LogValue(bool given) : value(given) {}
  LogValue(std::signed_integral auto given) : value(std::int64_t{given}) {}
  LogValue(std::unsigned_integral auto given) : value(std::uint64_t{given}) {}
  LogValue(std::floating_point auto given) : value(double{given}) {}
  template <typename Text>
    requires(!std::is_arithmetic_v<Text> && std::constructible_from<std::string, const Text&>)
  LogValue(const Text& text) : value(std::in_place_type<std::string>, text) {}
  // NOLINTEND(google-explicit-constructor)

  std::variant<std::string, bool, std::int64_t, std::uint64_t, double> value;
};

using LogFields = std::initializer_list<std::pair<std::string_view, LogValue>>;

// Thread-safe.
void LogInfo(std::string_view message, LogFields fields = {});
void LogWarning(std::string_view message, LogFields fields = {});
void LogError(std::string_view message, LogFields fields = {});

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace nibble::base

// Aborts the process if an invariant is broken. Must not be reachable from a request or a file.
#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::nibble::base::CheckFailed(__FILE__, __LINE__, #condition))
