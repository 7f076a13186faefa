#include "server/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/base/clock.h"
#include "server/base/log.h"
#include "server/base/log_limit.h"
#include "server/base/log_writer.h"

namespace nibble {

namespace {

constexpr int kLinesASecond = 20;             // a client can cause them, with bad handshakes or frames
constexpr std::size_t kMaxLoggedBytes = 512;  // a text may quote what a client sent

enum class Level { kInfo, kWarning, kError, kFatal };  // after a fatal line the library ends the process

void Pass(const char* library, Level level, const char* file, int line, std::string_view text) {
  // The hooks of both libraries are plain functions, so the limit cannot be passed to them.
  static base::LogLimit& limit = *new base::LogLimit(kLinesASecond);
  const auto left_out = limit.Take(base::RealClock().Monotonic());
  if (!left_out.has_value() && level != Level::kFatal) return;
  const auto log = level == Level::kInfo ? base::LogInfo : level == Level::kWarning ? base::LogWarning : base::LogError;
  log(library,
      {{"text", text.substr(0, kMaxLoggedBytes)}, {"file", file}, {"line", line}, {"left_out", left_out.value_or(0)}});
  if (level == Level::kFatal) base::FlushLog(absl::Seconds(2));
}

void OnGrpcLine(gpr_log_func_args* line) {
  const std::string_view text = line->message;
  Level level = line->severity == GPR_LOG_SEVERITY_ERROR ? Level::kError : Level::kInfo;
  if (text.starts_with("assertion failed")) level = Level::kFatal;  // gpr_assertion_failed
  Pass("grpc", level, line->file, line->line, text);
}

void OnProtobufLine(google::protobuf::LogLevel level, const char* file, int line, const std::string& text) {
  switch (level) {
    case google::protobuf::LOGLEVEL_INFO: return Pass("protobuf", Level::kInfo, file, line, text);
    case google::protobuf::LOGLEVEL_WARNING: return Pass("protobuf", Level::kWarning, file, line, text);
    case google::protobuf::LOGLEVEL_ERROR: return Pass("protobuf", Level::kError, file, line, text);
    case google::protobuf::LOGLEVEL_FATAL: return Pass("protobuf", Level::kFatal, file, line, text);
  }
}

}  // namespace

void LogLibraries() {
  gpr_set_log_function(OnGrpcLine);
  google::protobuf::SetLogHandler(OnProtobufLine);
}

}  // namespace nibble
