#include "server/jobs/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/event.h"
#include "server/store/layout.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

constexpr std::size_t kReadAtOnce = 8u << 20;  // more than the longest line

}  // namespace

std::string FormatEventTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

absl::StatusOr<JournalLine> ParseJournalLine(std::string_view text) {
  if (text.size() > kMaxJournalLineBytes) {
    return absl::InvalidArgumentError(
        StrCat("a journal line has ", text.size(), " bytes, wanted at most ", kMaxJournalLineBytes));
  }
  JournalLine line;
  NIBBLE_ASSIGN_OR_RETURN(line.body, base::ParseJson(text));
  constexpr char kWhere[] = "a journal line";
  NIBBLE_ASSIGN_OR_RETURN(line.sequence, base::GetInt(line.body, "sequence", kWhere));
  NIBBLE_ASSIGN_OR_RETURN(line.type, base::GetString(line.body, "type", kWhere));
  NIBBLE_ASSIGN_OR_RETURN(line.time, base::GetString(line.body, "time", kWhere));
  if (line.sequence < 1) {
    return absl::InvalidArgumentError(StrCat("a journal line has sequence ", line.sequence, ", wanted at least 1"));
  }
  if (IsEventType(line.type)) return line;
  return absl::InvalidArgumentError(StrCat("a journal line has unknown type \"", line.type.substr(0, 64), "\""));
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(base::FileSystem& files, base::Clock& clock,
                                                                   const std::string& attempt_directory) {
  const std::string path = base::JoinPath(attempt_directory, store::kJournalFile);
  // An attempt has one process and starts once, so an existing journal belongs to another process.
  if (files.Exists(path)) return absl::AlreadyExistsError(StrCat(path, " exists: this attempt was started before"));
  NIBBLE_ASSIGN_OR_RETURN(auto file, files.OpenForAppend(path));
  NIBBLE_RETURN_IF_ERROR(files.SyncDirectory(attempt_directory));
  return std::unique_ptr<JournalWriter>(new JournalWriter(clock, std::move(file)));
}

absl::StatusOr<std::string> JournalWriter::Append(std::string_view type, const Json& fields) {
  Json line = Json::object();
  line["sequence"] = sequence_ + 1;
  line["time"] = FormatEventTime(clock_.Now());
  line["type"] = std::string(type);
  for (const auto& item : fields.items()) line[item.key()] = item.value();
  std::string text = base::Dump(line);
  NIBBLE_RETURN_IF_ERROR(ParseJournalLine(text).status());
  text.push_back('\n');
  NIBBLE_RETURN_IF_ERROR(file_->Append(text));
  NIBBLE_RETURN_IF_ERROR(file_->Sync());
  ++sequence_;
  text.pop_back();
  return text;
}

JournalReader::JournalReader(const std::string& attempt_directory)
    : path_(base::JoinPath(attempt_directory, store::kJournalFile)) {}

absl::StatusOr<std::vector<JournalLine>> JournalReader::ReadNew() {
  std::vector<JournalLine> lines;
  read_ = accepted_;
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return lines;
    return absl::InternalError(StrCat("open ", path_, ": ", std::strerror(errno)));
  }
  std::string text;
  while (text.size() < kReadAtOnce) {
    char buffer[1 << 16];
    const ssize_t n = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(accepted_ + text.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      ::close(fd);
      return absl::InternalError(StrCat("read ", path_, ": ", std::strerror(error)));
    }
    if (n == 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    auto line = ParseJournalLine(std::string_view(text).substr(begin, end - begin));
    if (!line.ok()) {
      if (!lines.empty()) break;  // Return the good lines first; the next call returns the error.
      return absl::DataLossError(StrCat(path_, " at byte ", accepted_ + begin, ": ", line.status().message()));
    }
    lines.push_back(*std::move(line));
    begin = end + 1;
  }
  read_ = accepted_ + begin;
  return lines;
}

}  // namespace nibble::jobs
