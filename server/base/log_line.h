// Private to log.cc and log_writer.cc.
#pragma once
#include <string>
#include <string_view>

#include "server/base/log.h"

namespace nibble::base {

struct LogLine {
  bool urgent = false;  // a warning or an error
  std::string text;     // JSON, without a line break
};

// `level`: "info", "warning" or "error".
LogLine FormatLogLine(std::string_view level, std::string_view message, LogFields fields);
// Writes the line on the caller's thread. Returns once stderr has accepted it.
void PrintLogLine(const LogLine& line);
// Passes the line to the LogWriter, which may drop it. False: there is no LogWriter.
bool QueueLogLine(const LogLine& line);

}  // namespace nibble::base
