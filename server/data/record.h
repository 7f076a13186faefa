// One line of a training file, and the check of a whole file before anything is queued.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble::data {

// JSON lines: {"text": ...}, {"prompt": ..., "completion": ...}, {"messages": [{"role", "content"}, ...], "tools": [...]} ("tools" may
// be left out).
enum class Format { kText, kPromptCompletion, kChat };
const char* Name(Format format);                          // "text", "prompt_completion", "chat"
absl::StatusOr<Format> ParseFormat(std::string_view name);

struct Record {
  std::string text;           // kText
  std::string prompt;         // kPromptCompletion
  std::string completion;     // kPromptCompletion
  std::string messages_json;  // kChat: the array as it was written, every field kept
  std::string tools_json;     // kChat: "tools" of the row, an array of schemas for the template; "" without any
  std::vector<std::string> roles;  // kChat, one a message
  std::vector<std::optional<bool>> train;  // kChat, one a message: its own "train", where it has one
};

inline constexpr std::size_t kDefaultMaxLineBytes = std::size_t{1} << 20;
// Of one chat row: a line of a MiB could hold 30,000. Some templates render the row twice for each of them (rendered_chat.h).
inline constexpr std::size_t kMaxMessages = 1024;
// InvalidArgument for a row of more. Asked where a row is taken in or shown: whoever trains on it reads what was accepted.
absl::Status CheckMessages(const Record& record);

// InvalidArgument says what the line lacks; without format the keys decide.
absl::StatusOr<Record> ParseRecord(std::string_view line, Format format);
absl::StatusOr<Format> DetectFormat(std::string_view line);

// What is wrong with one line of a file, with its number, from 1, before the text. InvalidArgument without a reason of its own
// becomes DATASET_FORMAT.
absl::Status AtLine(std::int64_t line_number, const absl::Status& status);

struct FileSummary {
  Format format = Format::kText;
  std::int64_t num_rows = 0;
  std::int64_t num_bytes = 0;
};

// Reads a file as it arrives, in chunks of any size, with memory for one line. One thread.
class FileValidator {
 public:
  // Without a format the first row decides. The length of lines is judged here alone, when a file is taken in: whoever trains on
  // it reads what was accepted, whatever the limit is by then.
  explicit FileValidator(std::optional<Format> format, std::size_t max_line_bytes = kDefaultMaxLineBytes)
      : format_(format), max_line_bytes_(max_line_bytes) {}

  // Never fails: what is wrong is reported by Finish, with the numbers of the first 20 bad lines.
  void Feed(std::string_view chunk);
  // InvalidArgument (DATASET_FORMAT) names lines; also for a file without rows.
  absl::StatusOr<FileSummary> Finish();

 private:
  void Line(std::string_view line);
  void Complain(std::string_view what);

  std::optional<Format> format_;
  const std::size_t max_line_bytes_;
  std::string partial_;
  bool skipping_ = false;      // inside a line that is too long
  std::int64_t line_number_ = 0;
  std::int64_t num_errors_ = 0;
  std::vector<std::string> errors_;
  FileSummary summary_;
};

}  // namespace nibble::data
