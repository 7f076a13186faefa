// The journal of one attempt: JSON lines that the trainer appends and also sends to the server unchanged. Each line has
//   "sequence"   1, 2, 3 ... within the attempt, without a gap
//   "time"       RFC 3339, UTC, milliseconds
//   "type"       state | step | eval | checkpoint | model | warning | log
// and the fields of its type (event.h).
// A partially written last line (the process died while writing it) is ignored: readers stop before it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/json.h"

namespace nibble::jobs {

inline constexpr std::size_t kMaxJournalLineBytes = 1u << 20;

struct JournalLine {  // NOLINT(bugprone-exception-escape): the moves of nlohmann::json throw nothing
  std::int64_t sequence = 0;
  std::string type;
  std::string time;
  base::Json body;  // the whole object, including the three fields above
};

// InvalidArgument if the text is not such a line.
absl::StatusOr<JournalLine> ParseJournalLine(std::string_view text);

// Appends lines. One thread.
class JournalWriter {
 public:
  // Creates the journal. AlreadyExists if the attempt has one: it was started before.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Open(base::FileSystem& files, base::Clock& clock,
                                                             const std::string& attempt_directory);
  // Adds sequence and time, appends, syncs, and returns the line as written (for the report stream).
  absl::StatusOr<std::string> Append(std::string_view type, const base::Json& fields);
  std::int64_t last_sequence() const { return sequence_; }

 private:
  JournalWriter(base::Clock& clock, std::unique_ptr<base::WritableFile> file) : clock_(clock), file_(std::move(file)) {}
  base::Clock& clock_;
  std::unique_ptr<base::WritableFile> file_;
  std::int64_t sequence_ = 0;
};

// Follows a journal. One thread.
class JournalReader {
 public:
  explicit JournalReader(const std::string& attempt_directory);
  // Returns the complete lines after the accepted ones, at most about 8 MiB of them; none if there is no journal.
  // DataLoss if the first of these lines does not parse.
  absl::StatusOr<std::vector<JournalLine>> ReadNew();
  // The caller has recorded the lines that the last ReadNew returned. Otherwise the next one returns them again.
  void Accept() { accepted_ = read_; }

 private:
  std::string path_;
  // Offsets in the file: the ends of the last line that was accepted, and of the last one that was returned.
  std::uint64_t accepted_ = 0, read_ = 0;
};

std::string FormatEventTime(absl::Time time);

}  // namespace nibble::jobs
