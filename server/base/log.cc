#include "server/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/json.h"

namespace nibble::base {
namespace {

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("nibble", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

void Write(spdlog::level::level_enum level, const char* name, std::string_view message, LogFields fields) {
  Json line = Json::object();
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["level"] = name;
  line["message"] = std::string(message);
  for (const auto& [key, value] : fields) line[std::string(key)] = value;
  Logger().log(level, spdlog::string_view_t(Dump(line)));
}

}  // namespace

void LogInfo(std::string_view message, LogFields fields) { Write(spdlog::level::info, "info", message, fields); }
void LogWarning(std::string_view message, LogFields fields) { Write(spdlog::level::warn, "warning", message, fields); }
void LogError(std::string_view message, LogFields fields) { Write(spdlog::level::err, "error", message, fields); }

void CheckFailed(const char* file, int line, const char* condition) {
  LogError("broken invariant", {{"file", file}, {"line", std::to_string(line)}, {"condition", condition}});
  std::abort();
}

}  // namespace nibble::base
