// JSON lines on stderr: {"time", "level", "message", fields...}. Values are escaped. Callers must not log secrets.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::base {

using LogFields = std::initializer_list<std::pair<std::string_view, std::string>>;

// Thread-safe.
void LogInfo(std::string_view message, LogFields fields = {});
void LogWarning(std::string_view message, LogFields fields = {});
void LogError(std::string_view message, LogFields fields = {});

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace nibble::base

// Aborts the process if an invariant is broken. Must not be reachable from a request or a file.
#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::nibble::base::CheckFailed(__FILE__, __LINE__, #condition))
