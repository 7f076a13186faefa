#include "server/data/train_tokenizer.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/model/forget_pages.h"
#include "server/text/tokenizer_trainer.h"

namespace nibble::data {
namespace {

constexpr std::int64_t kMaxLetters = 8 << 20;               // of all different words
constexpr std::size_t kWindowBytes = std::size_t{4} << 20;  // between two reports of progress

absl::StatusOr<std::vector<std::string>> TextsOf(const Row& row, RowFormat format) {
  if (format == RowFormat::kText) return std::vector{row.text};
  if (format == RowFormat::kPromptCompletion) return std::vector{row.prompt, row.completion};
  std::vector<std::string> texts;
  NIBBLE_ASSIGN_OR_RETURN(const base::Json messages, base::ParseJson(row.messages_json));
  for (const base::Json& message : messages) {
    const auto content = message.find("content");  // not a string if the message only calls tools
    if (content != message.end() && content->is_string()) texts.push_back(content->get<std::string>());
  }
  return texts;
}

absl::Status CountLine(std::string_view line, RowFormat format, text::TokenizerTrainer& trainer) {
  if (IsBlankLine(line)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const Row row, ParseRow(line, format));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, TextsOf(row, format));
  for (const std::string& text : texts) NIBBLE_RETURN_IF_ERROR(trainer.Count(text));
  return absl::OkStatus();
}

}  // namespace

std::int64_t TrainTokenizerBytes(std::uint64_t file_bytes, std::int64_t vocab_size) {
  const auto letters = static_cast<std::int64_t>(std::min<std::uint64_t>(file_bytes, kMaxLetters));
  return text::TokenizerTrainer::PeakBytes(letters, vocab_size);
}

absl::StatusOr<std::string> TrainTokenizer(const std::string& data_path, RowFormat format,
                                           std::span<const std::string> special_tokens, std::int64_t vocab_size,
                                           const base::Cancelled& cancelled,
                                           const std::function<void(std::int64_t bytes)>& progress) {
  NIBBLE_ASSIGN_OR_RETURN(const auto trainer, text::TokenizerTrainer::Make(special_tokens, vocab_size, kMaxLetters));
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(data_path));
  std::string_view rest = file->text();
  std::size_t reported = 0;
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const absl::Status counted = CountLine(rest.substr(0, end), format, *trainer);
    if (!counted.ok()) return AtLine(number, counted);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::size_t read = file->text().size() - rest.size();
    if (read - reported < kWindowBytes) continue;
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    progress(static_cast<std::int64_t>(read));
    model::ForgetPages(file->bytes().first(read));
    reported = read;
  }
  NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
  return trainer->Train();
}

}  // namespace nibble::data
