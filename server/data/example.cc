#include "server/data/example.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::data {
namespace {

using ByteRanges = std::vector<std::pair<std::size_t, std::size_t>>;

// The same bytes in ranges of which none is empty, in order, with a gap between two.
ByteRanges Union(ByteRanges ranges) {
  std::erase_if(ranges, [](const auto& range) { return range.first >= range.second; });
  std::sort(ranges.begin(), ranges.end());
  ByteRanges joined;
  for (const auto& range : ranges) {
    if (!joined.empty() && range.first <= joined.back().second) {
      joined.back().second = std::max(joined.back().second, range.second);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

// Tokens of `text`, trained where they begin inside one of the ranges, which are as Union makes them.
absl::StatusOr<Example> Mark(std::string_view text, bool add_special_tokens, const ByteRanges& ranges,
                             const text::Tokenizer& tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(const auto spans, tokenizer.EncodeWithSpans(text, add_special_tokens));
  Example example;
  for (const text::TokenSpan& span : spans) {
    const auto next = std::upper_bound(ranges.begin(), ranges.end(), span.begin,
                                       [](std::size_t begin, const auto& range) { return begin < range.first; });
    const bool inside = span.end > span.begin && next != ranges.begin() && span.begin < std::prev(next)->second;
    example.tokens.push_back(span.id);
    example.trained.push_back(inside ? 1 : 0);
  }
  return example;
}

// What a template that asks for the date is told: the same day in every attempt, evaluation and time zone, or the tokens of a
// data set would depend on when they were made. It is the day that Llama 3's own template falls back to.
constexpr std::int64_t kTemplateTime = 1'721'995'200;  // 2024-07-26, 12:00 UTC

absl::Status TemplateError(std::string_view message) {
  return base::WithReason(absl::InvalidArgumentError(base::StrCat("chat template: ", message)), "TEMPLATE_ERROR", {{"field", "messages"}});
}

// A conversation, of which any number of messages from the first can be rendered.
class Conversation {
 public:
  Conversation(const base::Json& messages, const text::ChatTemplate& chat, const std::function<bool()>& cancelled)
      : chat_(chat), cancelled_(cancelled) {
    for (const base::Json& message : messages) {
      if (!ends_.empty()) json_ += ',';
      json_ += base::Dump(message);
      ends_.push_back(json_.size());
    }
  }

  std::size_t size() const { return ends_.size(); }
  absl::StatusOr<std::string> Render(std::size_t count, bool add_generation_prompt) const {
    if (cancelled_ && cancelled_()) return absl::CancelledError("cancelled while a conversation was rendered");
    text::RenderOptions options;
    options.add_generation_prompt = add_generation_prompt;
    options.now_unix_seconds = kTemplateTime;
    const std::string_view messages = std::string_view(json_).substr(0, count == 0 ? 0 : ends_[count - 1]);
    auto rendered = chat_.RenderJson(base::StrCat("[", messages, "]"), options);
    if (!rendered.ok()) return TemplateError(base::ToStd(rendered.status().message()));
    return rendered;
  }

 private:
  const text::ChatTemplate& chat_;
  const std::function<bool()>& cancelled_;
  std::string json_;               // the messages, with commas between
  std::vector<std::size_t> ends_;  // of each of them
};

absl::StatusOr<Example> TokeniseChat(const Record& record, const model::TextAssets& text, bool train_on_prompt,
                                     const std::function<bool()>& cancelled) {
  if (text.chat_template == nullptr) {
    return base::WithReason(absl::InvalidArgumentError("the base model has no chat template, which format chat needs"),
                            "TEMPLATE_ERROR", {{"field", "chat_template"}});
  }
  NIBBLE_ASSIGN_OR_RETURN(const base::Json messages, base::ParseJson(record.messages_json));
  const Conversation conversation(messages, *text.chat_template, cancelled);
  NIBBLE_ASSIGN_OR_RETURN(const std::string full, conversation.Render(conversation.size(), false));
  ByteRanges ranges;
  std::size_t trained_from = 0;  // with train_on_prompt: the end of what was left out last
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const bool answers = record.roles[i] == "assistant";
    // Only these have to be found in the text: the trained ones, or those left out of a whole that is trained.
    if (record.train[i].value_or(train_on_prompt || answers) == train_on_prompt) continue;
    std::string before;
    if (i > 0 || answers) {  // many templates refuse a conversation without messages
      NIBBLE_ASSIGN_OR_RETURN(before, conversation.Render(i, answers));
    }
    std::string after = full;  // the commonest case, one turn, costs one rendering less
    if (i + 1 < conversation.size()) {
      NIBBLE_ASSIGN_OR_RETURN(after, conversation.Render(i + 1, false));
    }
    // Without this the turn's place in the text is not known, and a wrong mask trains on the wrong words in silence.
    if (!full.starts_with(after) || !after.starts_with(before)) {
      return TemplateError(base::StrCat("message ", i, " does not continue what was rendered before it; set train_on_prompt (and no "
                                        "\"train\" of a message), or use another template"));
    }
    if (train_on_prompt) {
      ranges.emplace_back(trained_from, before.size());
      trained_from = after.size();
    } else {
      ranges.emplace_back(before.size(), after.size());
    }
  }
  if (train_on_prompt) ranges.emplace_back(trained_from, full.size());
  return Mark(full, /*add_special_tokens=*/false, Union(std::move(ranges)), *text.tokenizer);
}

}  // namespace

Overlong OverlongFor(std::string_view policy, Format chosen_for, Format format) {
  if (policy == "drop") return Overlong::kDrop;
  if (policy == "error") return Overlong::kError;
  if (policy.empty() || format != chosen_for) return format == Format::kText ? Overlong::kSplit : Overlong::kTruncate;
  return policy == "split" ? Overlong::kSplit : Overlong::kTruncate;
}

std::int64_t Example::num_trained() const {
  return trained.empty() ? 0 : std::accumulate(trained.begin() + 1, trained.end(), std::int64_t{0});
}

absl::StatusOr<std::vector<Example>> Tokenise(const Record& record, Format format, const model::TextAssets& text,
                                              const model::ModelConfig& config, const TokeniseOptions& options,
                                              const std::function<bool()>& cancelled) {
  Example whole;
  switch (format) {
    case Format::kText: {
      NIBBLE_ASSIGN_OR_RETURN(whole.tokens, text.tokenizer->Encode(record.text, /*add_special_tokens=*/true));
      whole.trained.assign(whole.tokens.size(), 1);
      break;
    }
    case Format::kPromptCompletion: {
      const std::string joined = record.prompt + record.completion;
      const ByteRanges ranges = Union({{options.train_on_prompt ? 0 : record.prompt.size(), joined.size()}});
      NIBBLE_ASSIGN_OR_RETURN(whole, Mark(joined, /*add_special_tokens=*/true, ranges, *text.tokenizer));
      break;
    }
    case Format::kChat: {
      NIBBLE_ASSIGN_OR_RETURN(whole, TokeniseChat(record, text, options.train_on_prompt, cancelled));
      break;
    }
  }
  if (format != Format::kChat && !config.eos_token_ids.empty()) {
    if (whole.tokens.empty() || whole.tokens.back() != config.eos_token_ids.front()) {
      whole.tokens.push_back(config.eos_token_ids.front());
      whole.trained.push_back(1);
    }
    whole.trained.back() = 1;  // also one that the tokenizer itself put at the end, outside of the text
  }
  const auto limit = static_cast<std::size_t>(options.max_seq_len);
  const Overlong overlong = options.overlong.value_or(OverlongFor("", format, format));
  std::vector<Example> pieces;
  if (whole.tokens.size() <= limit) {
    pieces.push_back(std::move(whole));
  } else if (overlong == Overlong::kSplit) {
    for (std::size_t begin = 0; begin < whole.tokens.size(); begin += limit) {
      const std::size_t count = std::min(limit, whole.tokens.size() - begin);
      const auto tokens = std::span(whole.tokens).subspan(begin, count);
      pieces.push_back({.tokens = {tokens.begin(), tokens.end()}, .trained = std::vector<std::uint8_t>(count, 1)});
    }
  } else if (overlong == Overlong::kTruncate) {
    whole.num_cut_off = static_cast<std::int64_t>(whole.tokens.size() - limit);
    whole.tokens.resize(limit);
    whole.trained.resize(limit);
    pieces.push_back(std::move(whole));
  } else if (overlong == Overlong::kError) {
    return absl::InvalidArgumentError(base::StrCat("has ", whole.tokens.size(), " tokens, max_seq_len is ", limit));
  }
  return pieces;
}

absl::StatusOr<Dataset> LoadDataset(const std::string& path, Format format, const model::TextAssets& text,
                                    const model::ModelConfig& config, const TokeniseOptions& options,
                                    const std::function<bool()>& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(path));
  Dataset dataset;
  std::string_view rest = file->text();
  std::int64_t line_number = 0;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line_number;
    if (cancelled && cancelled()) return absl::CancelledError(base::StrCat("cancelled at line ", line_number, " of the data"));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto record = ParseRecord(line, format);
    if (!record.ok()) return AtLine(line_number, record.status());
    auto pieces = Tokenise(*record, format, text, config, options, cancelled);
    if (!pieces.ok()) return AtLine(line_number, pieces.status());
    ++dataset.num_rows;
    if (pieces->empty()) dataset.dropped.Add(line_number);
    if (!pieces->empty() && pieces->front().num_cut_off > 0) dataset.truncated.Add(line_number);
    const auto is_trained = [](const Example& example) { return example.num_trained() > 0; };
    if (!pieces->empty() && std::none_of(pieces->begin(), pieces->end(), is_trained)) dataset.without_loss.Add(line_number);
    for (Example& example : *pieces) {
      // Nothing to learn from it (one token, or a prompt that fills the row): it would only take time.
      if (example.num_trained() == 0) continue;
      dataset.num_tokens += static_cast<std::int64_t>(example.tokens.size());
      dataset.num_trained += example.num_trained();
      dataset.examples.push_back(std::move(example));
    }
  }
  if (dataset.num_trained == 0) {
    return base::WithReason(
        absl::InvalidArgumentError(base::StrCat("the dataset has no trainable tokens in ", dataset.num_rows, " rows")),
        "NO_TRAINABLE_TOKENS");
  }
  return dataset;
}

void RowList::Add(std::int64_t line) {
  ++count;
  if (lines.size() < static_cast<std::size_t>(kMaxNamedRows)) lines.push_back(line);
}

std::vector<RowWarning> RowWarnings(const Dataset& dataset, std::int64_t max_seq_len) {
  std::vector<RowWarning> warnings;
  const auto warn = [&](const char* reason, const RowList& rows, const std::string& what) {
    if (rows.count == 0) return;
    warnings.push_back({reason, base::StrCat(rows.count, " of ", dataset.num_rows, " rows ", what), rows.lines});
  };
  const std::string longer = base::StrCat("are longer than data.max_seq_len ", max_seq_len);
  warn("ROWS_TRUNCATED", dataset.truncated, base::StrCat(longer, " and lose their end"));
  warn("ROWS_DROPPED", dataset.dropped, base::StrCat(longer, " and are left out"));
  warn("ROWS_WITHOUT_LOSS", dataset.without_loss, "have no token that is trained and are left out");
  return warnings;
}

}  // namespace nibble::data
