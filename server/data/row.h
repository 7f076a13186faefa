// Parses one line of a training file, and validates a whole file before anything is queued.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data/row_list.h"

namespace nibble::data {

// JSON lines: {"text": ...}, {"prompt": ..., "completion": ...},
// {"messages": [{"role", "content"}, ...], "tools": [...]} ("tools" is optional).
enum class RowFormat { kText, kPromptCompletion, kChat };
const char* Name(RowFormat format);  // "text", "prompt_completion", "chat"
absl::StatusOr<RowFormat> ParseRowFormat(std::string_view name);

struct Row {
  std::string text;                // kText
  std::string prompt;              // kPromptCompletion
  std::string completion;          // kPromptCompletion
  std::string messages_json;       // kChat: the array, with all fields of its messages
  std::string tools_json;          // kChat: "tools" of the row, an array of schemas for the template; "" if none
  std::vector<std::string> roles;  // kChat, one per message
  std::vector<std::optional<bool>> train;  // kChat, one per message: its "train", if set
  // The completion is blank; kChat: a message that "train" or the role "assistant" marks for training has neither text
  // nor tool calls.
  bool has_empty_answer = false;
};

inline constexpr std::size_t kDefaultMaxLineBytes = std::size_t{1} << 20;
// Maximum messages per chat row: a line of 1 MiB could hold 30,000, and with some templates the row is rendered twice
// for each message (rendered_chat.h).
inline constexpr std::size_t kMaxMessages = 1024;
// InvalidArgument if a row has more messages. Called when a row is accepted or shown, not in training, which reads
// every accepted row.
absl::Status CheckMessages(const Row& row);

// Name of message `index` (from 0) in an error, which counts from 1 as the numbers of lines do: "message 2 (user)".
std::string MessageName(std::size_t index, std::string_view role);

// A line without a row.
bool IsBlankLine(std::string_view line);
// InvalidArgument says what is wrong with the line. DetectRowFormat decides by the keys.
absl::StatusOr<Row> ParseRow(std::string_view line, RowFormat format);
absl::StatusOr<RowFormat> DetectRowFormat(std::string_view line);

// An error of one line of a file, prefixed with the line's number (from 1). InvalidArgument without a reason becomes
// DATASET_FORMAT.
absl::Status AtLine(std::int64_t line_number, const absl::Status& status);

struct FileSummary {
  RowFormat format = RowFormat::kText;
  std::int64_t num_rows = 0;
  std::int64_t num_bytes = 0;
  RowList empty_answers;  // Row::has_empty_answer
};

// Validates a file as it arrives, in chunks of any size. Holds one line in memory. One thread.
class FileValidator {
 public:
  // Without a format, the first row decides. The length of lines is checked only here, when a file is accepted:
  // training reads every accepted file, whatever the limit is by then.
  explicit FileValidator(std::optional<RowFormat> format, std::size_t max_line_bytes = kDefaultMaxLineBytes)
      : format_(format), max_line_bytes_(max_line_bytes) {}

  // Never fails: Finish reports the errors.
  void Feed(std::string_view chunk);
  // InvalidArgument (DATASET_FORMAT) names each error once, with all its lines ("lines 2, 5-9: ..."): the first 20
  // different errors and 80 ranges of lines; it counts the other bad lines. Also an error: a file without rows.
  absl::StatusOr<FileSummary> Finish();

 private:
  struct Complaint {
    std::string what;
    std::vector<std::pair<std::int64_t, std::int64_t>> lines;  // ranges, first and last
  };
  void Line(std::string_view line);
  void Complain(std::string_view what);
  std::string ComplaintsText() const;

  std::optional<RowFormat> format_;
  const std::size_t max_line_bytes_;
  std::string partial_;
  bool skipping_ = false;  // inside a line that is too long
  std::int64_t line_number_ = 0;
  std::vector<Complaint> complaints_;  // in the order of their first lines
  std::size_t num_ranges_ = 0;         // of all complaints
  std::int64_t num_unnamed_ = 0;       // bad lines beyond the limits
  FileSummary summary_;
};

}  // namespace nibble::data
