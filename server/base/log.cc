#include "server/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/base/json.h"
#include "server/base/log_line.h"
#include "server/base/log_writer.h"

namespace nibble::base {
namespace {

// Never destroyed: a thread may log, or stall in a write, until the process exits.
spdlog::logger& Logger() {
  static spdlog::logger& logger = *[] {
    auto* made = new spdlog::logger("nibble", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return logger;
}

void Write(std::string_view level, std::string_view message, LogFields fields) {
  const LogLine line = FormatLogLine(level, message, fields);
  if (!QueueLogLine(line)) PrintLogLine(line);
}

}  // namespace

LogLine FormatLogLine(std::string_view level, std::string_view message, LogFields fields) {
  Json line = Json::object();
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  line["level"] = std::string(level);
  line["message"] = std::string(message);
  for (const auto& [key, field] : fields) {
    std::visit([&to = line[std::string(key)]](const auto& value) { to = value; }, field.value);
  }
  return {level != "info", Dump(line)};
}

void PrintLogLine(const LogLine& line) { Logger().log(spdlog::level::info, spdlog::string_view_t(line.text)); }

void LogInfo(std::string_view message, LogFields fields) { Write("info", message, fields); }
void LogWarning(std::string_view message, LogFields fields) { Write("warning", message, fields); }
void LogError(std::string_view message, LogFields fields) { Write("error", message, fields); }

void CheckFailed(const char* file, int line, const char* condition) {
  LogError("broken invariant", {{"file", file}, {"line", line}, {"condition", condition}});
  FlushLog(absl::Seconds(2));
  std::abort();
}

}  // namespace nibble::base
