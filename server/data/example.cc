#include "server/data/example.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/rendered_chat.h"
#include "server/text/piece_encoder.h"

namespace nibble::data {
namespace {

// The same bytes as sorted, non-empty ranges with a gap between any two.
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

// The bytes of `text` that `span` shares with a trained range, and whether the token also covers bytes outside of that
// range.
struct Overlap {
  std::string_view bytes;
  bool reaches_out = false;
};

Overlap OverlapOf(const text::TokenSpan& span, std::string_view text, const ByteRanges& ranges) {
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), span.end,
                                     [](std::size_t end, const auto& range) { return end <= range.first; });
  if (next == ranges.begin()) return {};
  const auto [first, last] = *std::prev(next);
  const std::size_t begin = std::max<std::size_t>(span.begin, first), end = std::min<std::size_t>(span.end, last);
  if (begin >= end) return {};
  return {.bytes = text.substr(begin, end - begin), .reaches_out = span.begin < first || span.end > last};
}

bool IsBlank(std::string_view text) { return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos; }

// Maximum memory per byte of a large row, besides the encoder's: the line, its JSON and row, a rendering, and the
// tokens while they grow and are split.
constexpr std::int64_t kRowBytesPerByte = 16;

// Encodes one row. Waits for a turn before it takes much memory.
class RowEncoder {
 public:
  using Take = std::function<void(std::span<const text::TokenSpan>)>;

  RowEncoder(const text::Tokenizer& tokenizer, const base::Cancelled& cancelled, const AwaitTurn& await_turn)
      : tokenizer_(tokenizer), cancelled_(cancelled), await_turn_(await_turn) {}

  // Must be called before a row of `row_bytes` is read.
  absl::Status Admit(std::size_t row_bytes) {
    if (row_bytes <= kLargeRowBytes) return absl::OkStatus();
    row_bytes_ = static_cast<std::int64_t>(row_bytes);
    return Need(static_cast<std::int64_t>(text::kPieceBytes));
  }

  // Passes the tokens of the text to `take`. Calls `void_taken` when it starts again from the first token. Returns
  // began_with_added.
  absl::StatusOr<bool> Encode(std::string_view text, bool add_special_tokens, const Take& take,
                              const std::function<void()>& void_taken) {
    if (text.size() > text::kPieceBytes) {
      NIBBLE_ASSIGN_OR_RETURN(const text::EncodedPieces pieces,
                              text::EncodeInPieces(tokenizer_, text,
                                                   {.add_special_tokens = add_special_tokens,
                                                    .cancelled = cancelled_,
                                                    .admit = [this](std::size_t bytes) { return AdmitPiece(bytes); }},
                                                   take));
      if (pieces.complete) return pieces.began_with_added;
      void_taken();
      NIBBLE_RETURN_IF_ERROR(AdmitPiece(text.size()));
    }
    NIBBLE_ASSIGN_OR_RETURN(const text::EncodedText encoded, tokenizer_.EncodeWithSpans(text, add_special_tokens));
    take(encoded.tokens);
    return encoded.began_with_added;
  }

 private:
  absl::Status AdmitPiece(std::size_t bytes) {
    return bytes > kSmallPieceBytes ? Need(static_cast<std::int64_t>(bytes)) : absl::OkStatus();
  }

  // Takes the memory to encode `piece_bytes` at once.
  absl::Status Need(std::int64_t piece_bytes) {
    if (!await_turn_) return absl::OkStatus();
    if (!turn_.has_value()) {
      NIBBLE_ASSIGN_OR_RETURN(auto turn, await_turn_());
      turn_.emplace(std::move(turn));
    }
    return turn_->Need(kRowBytesPerByte * row_bytes_ + text::kEncoderBytesPerByte * piece_bytes);
  }

  // A thread may encode this much at once without a turn: the memory that nibbled reserves for token writers suffices
  // (server/limits.cc).
  static constexpr std::size_t kSmallPieceBytes = 2 * text::kPieceBytes;

  const text::Tokenizer& tokenizer_;
  const base::Cancelled& cancelled_;
  const AwaitTurn& await_turn_;
  std::optional<LargeRows::Turn> turn_;
  std::int64_t row_bytes_ = 0;  // of a large row
};

// Tokens of a text, all trained.
absl::StatusOr<Example> EncodeAll(std::string_view text, bool add_special_tokens, RowEncoder& encoder) {
  Example example;
  NIBBLE_ASSIGN_OR_RETURN(example.began_with_added, encoder.Encode(
                                                        text, add_special_tokens,
                                                        [&](std::span<const text::TokenSpan> tokens) {
                                                          for (const text::TokenSpan& span : tokens)
                                                            example.tokens.push_back(span.id);
                                                        },
                                                        [&] { example.tokens.clear(); }));
  example.trained.assign(example.tokens.size(), 1);
  return example;
}

// The roles that chat templates of published models handle.
bool IsUsualRole(std::string_view role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function", "ipython"};
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

// An example, and the index of its first trained token that also covers text that is not trained.
struct Marked {
  Example example;
  std::optional<std::size_t> first_merged;
};

// Tokens of `text`, trained where they overlap one of the ranges, which Union has made. A token that begins in the
// prompt is trained too, because no other token has the completion's first characters.
absl::StatusOr<Marked> Mark(std::string_view text, bool add_special_tokens, const ByteRanges& ranges,
                            const text::Tokenizer& tokenizer, RowEncoder& encoder) {
  Marked marked;
  Example& example = marked.example;
  const auto take = [&](std::span<const text::TokenSpan> tokens) {
    for (const text::TokenSpan& span : tokens) {
      const Overlap overlap = OverlapOf(span, text, ranges);
      // A special token may swallow the blanks beside it ("rstrip"). Blanks alone do not make it a part of the
      // completion.
      const bool is_trained =
          !overlap.bytes.empty() && !(overlap.reaches_out && IsBlank(overlap.bytes) && tokenizer.IsSpecial(span.id));
      if (is_trained && overlap.reaches_out && !marked.first_merged.has_value())
        marked.first_merged = example.tokens.size();
      example.tokens.push_back(span.id);
      example.trained.push_back(is_trained ? 1 : 0);
    }
  };
  NIBBLE_ASSIGN_OR_RETURN(example.began_with_added,
                          encoder.Encode(text, add_special_tokens, take, [&] { marked = {}; }));
  return marked;
}

absl::StatusOr<Marked> TokenizeChat(const Row& row, const model::TextAssets& text, bool train_on_prompt,
                                    bool add_special_tokens, const base::Cancelled& cancelled, RowEncoder& encoder) {
  if (text.chat_template == nullptr) {
    return base::WithReason(absl::InvalidArgumentError("the base model has no chat template, which format chat needs"),
                            "TEMPLATE_ERROR", {{"field", "chat_template"}});
  }
  NIBBLE_ASSIGN_OR_RETURN(RenderedChat chat, RenderChat(row, *text.chat_template, train_on_prompt, cancelled));
  return Mark(chat.text, add_special_tokens, Union(std::move(chat.trained)), *text.tokenizer, encoder);
}

// Examples of at most `limit` tokens. A single token has no loss, so the last two examples share their tokens if
// needed.
std::vector<Example> Split(const Example& whole, std::size_t limit) {
  std::vector<Example> pieces;
  for (std::size_t begin = 0; begin < whole.tokens.size();) {
    const std::size_t left = whole.tokens.size() - begin;
    const std::size_t count = left == limit + 1 ? limit - 1 : std::min(limit, left);
    const auto tokens = std::span(whole.tokens).subspan(begin, count);
    pieces.push_back({.tokens = {tokens.begin(), tokens.end()},
                      .trained = std::vector<std::uint8_t>(count, 1),
                      .began_with_added = whole.began_with_added && begin == 0});
    begin += count;
  }
  return pieces;
}

absl::StatusOr<std::vector<Example>> TokenizeWith(RowEncoder& encoder, const Row& row, RowFormat format,
                                                  const model::TextAssets& text, const model::ModelConfig& config,
                                                  const TokenizeOptions& options, const base::Cancelled& cancelled) {
  Marked marked;
  const bool add_special_tokens = options.add_special_tokens.value_or(format != RowFormat::kChat);
  switch (format) {
    case RowFormat::kText: {
      NIBBLE_ASSIGN_OR_RETURN(marked.example, EncodeAll(row.text, add_special_tokens, encoder));
      break;
    }
    case RowFormat::kPromptCompletion: {
      const std::string joined = row.prompt + row.completion;
      const ByteRanges ranges = Union({{options.train_on_prompt ? 0 : row.prompt.size(), joined.size()}});
      NIBBLE_ASSIGN_OR_RETURN(marked, Mark(joined, add_special_tokens, ranges, *text.tokenizer, encoder));
      break;
    }
    case RowFormat::kChat: {
      NIBBLE_ASSIGN_OR_RETURN(marked,
                              TokenizeChat(row, text, options.train_on_prompt, add_special_tokens, cancelled, encoder));
      break;
    }
  }
  Example& whole = marked.example;
  if (format != RowFormat::kChat && !config.eos_token_ids.empty()) {
    if (whole.tokens.empty() || whole.tokens.back() != config.eos_token_ids.front()) {
      whole.tokens.push_back(config.eos_token_ids.front());
      whole.trained.push_back(1);
    }
    whole.trained.back() = 1;  // also if the tokenizer itself added it, outside of the text
  }
  const auto limit = static_cast<std::size_t>(options.max_seq_len);
  const Overlong overlong = options.overlong.value_or(OverlongFor("", format, format));
  std::vector<Example> pieces;
  if (whole.tokens.size() > limit && overlong == Overlong::kError) {
    return absl::InvalidArgumentError(base::StrCat("has ", whole.tokens.size(), " tokens, max_seq_len is ", limit));
  }
  if (whole.tokens.size() > limit && overlong == Overlong::kDrop) return pieces;
  if (whole.tokens.size() > limit && overlong == Overlong::kSplit) {
    pieces = Split(whole, limit);
  } else {
    if (whole.tokens.size() > limit) {
      whole.num_cut_off = static_cast<std::int64_t>(whole.tokens.size() - limit);
      whole.tokens.resize(limit);
      whole.trained.resize(limit);
    }
    whole.boundary_merged = marked.first_merged.value_or(whole.tokens.size()) < whole.tokens.size();
    pieces.push_back(std::move(whole));
  }
  // Otherwise a truncated row keeps the memory of the whole row, and each vector up to twice what it needs.
  for (Example& piece : pieces) {
    piece.tokens.shrink_to_fit();
    piece.trained.shrink_to_fit();
  }
  return pieces;
}

}  // namespace

Overlong OverlongFor(std::string_view policy, RowFormat chosen_for, RowFormat format) {
  if (policy == "drop") return Overlong::kDrop;
  if (policy == "error") return Overlong::kError;
  if (policy.empty() || format != chosen_for)
    return format == RowFormat::kText ? Overlong::kSplit : Overlong::kTruncate;
  return policy == "split" ? Overlong::kSplit : Overlong::kTruncate;
}

absl::StatusOr<std::vector<Example>> Tokenize(const Row& row, RowFormat format, const model::TextAssets& text,
                                              const model::ModelConfig& config, const TokenizeOptions& options,
                                              const base::Cancelled& cancelled, const AwaitTurn& await_turn) {
  RowEncoder encoder(*text.tokenizer, cancelled, await_turn);
  NIBBLE_RETURN_IF_ERROR(
      encoder.Admit(row.text.size() + row.prompt.size() + row.completion.size() + row.messages_json.size()));
  return TokenizeWith(encoder, row, format, text, config, options, cancelled);
}

absl::Status AddLine(std::int64_t line_number, std::string_view line, RowFormat format, const model::TextAssets& text,
                     const model::ModelConfig& config, const TokenizeOptions& options, const base::Cancelled& cancelled,
                     const AwaitTurn& await_turn, std::vector<Example>* examples, DataSummary* summary) {
  if (cancelled && cancelled())
    return absl::CancelledError(base::StrCat("cancelled at line ", line_number, " of the data"));
  if (IsBlankLine(line)) return absl::OkStatus();
  RowEncoder encoder(*text.tokenizer, cancelled, await_turn);
  if (const absl::Status admitted = encoder.Admit(line.size()); !admitted.ok()) return AtLine(line_number, admitted);
  auto row = ParseRow(line, format);
  if (!row.ok()) return AtLine(line_number, row.status());
  auto pieces = TokenizeWith(encoder, *row, format, text, config, options, cancelled);
  if (!pieces.ok()) return AtLine(line_number, pieces.status());
  NoteRow(line_number, *row, *pieces, summary);
  for (Example& example : *pieces) {
    const std::int64_t num_trained = example.num_trained();
    // An example without a loss (one token, or a prompt that fills the row) would only take time.
    if (num_trained == 0) continue;
    summary->num_tokens += static_cast<std::int64_t>(example.tokens.size());
    summary->num_trained += num_trained;
    example.line = line_number;
    examples->push_back(std::move(example));
  }
  return absl::OkStatus();
}

absl::Status CheckTrainable(const DataSummary& summary) {
  if (summary.num_trained > 0) return absl::OkStatus();
  std::string message = base::StrCat("the dataset has no trainable tokens in ", summary.num_rows, " rows");
  if (const std::int64_t num_too_long = summary.truncated.count + summary.dropped.count; num_too_long > 0) {
    message += base::StrCat("; ", num_too_long, " of them are longer than data.max_seq_len");
  }
  return base::WithReason(absl::InvalidArgumentError(message), "NO_TRAINABLE_TOKENS");
}

absl::StatusOr<Dataset> LoadDataset(const std::string& path, RowFormat format, const model::TextAssets& text,
                                    const model::ModelConfig& config, const TokenizeOptions& options,
                                    const base::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(path));
  Dataset dataset;
  std::vector<Example> examples;
  std::string_view rest = file->text();
  for (std::int64_t line_number = 1; !rest.empty(); ++line_number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    NIBBLE_RETURN_IF_ERROR(
        AddLine(line_number, line, format, text, config, options, cancelled, {}, &examples, &dataset));
  }
  NIBBLE_RETURN_IF_ERROR(CheckTrainable(dataset));
  dataset.examples = ExampleList(std::move(examples));
  return dataset;
}

void NoteRow(std::int64_t line, const Row& row, const std::vector<Example>& pieces, DataSummary* summary) {
  ++summary->num_rows;
  if (!std::all_of(row.roles.begin(), row.roles.end(), IsUsualRole)) summary->unknown_roles.Add(line);
  if (row.has_empty_answer) summary->empty_answers.Add(line);
  if (pieces.empty()) {
    summary->dropped.Add(line);
    return;
  }
  const auto is_trained = [](const Example& example) { return example.num_trained() > 0; };
  const auto is_merged = [](const Example& example) { return example.boundary_merged; };
  if (pieces.front().num_cut_off > 0) summary->truncated.Add(line);
  if (std::none_of(pieces.begin(), pieces.end(), is_trained)) summary->without_loss.Add(line);
  if (std::any_of(pieces.begin(), pieces.end(), is_merged)) summary->boundary_merged.Add(line);
  if (pieces.front().began_with_added) summary->began_with_added.Add(line);
}

void DataSummary::Append(const DataSummary& later) {
  num_rows += later.num_rows;
  truncated.Append(later.truncated);
  dropped.Append(later.dropped);
  without_loss.Append(later.without_loss);
  boundary_merged.Append(later.boundary_merged);
  began_with_added.Append(later.began_with_added);
  unknown_roles.Append(later.unknown_roles);
  empty_answers.Append(later.empty_answers);
  num_tokens += later.num_tokens;
  num_trained += later.num_trained;
}

std::string EvaluationSet(const std::string& name) { return base::StrCat("eval_dataset \"", name, "\": "); }

std::vector<RowWarning> RowWarnings(const DataSummary& summary, std::int64_t max_seq_len, const std::string& set) {
  std::vector<RowWarning> warnings;
  const auto warn = [&](const char* reason, const RowList& rows, const std::string& what) {
    if (rows.count == 0) return;
    warnings.push_back({reason, base::StrCat(set, rows.count, " of ", summary.num_rows, " rows ", what), rows.lines});
  };
  const std::string longer = base::StrCat("are longer than data.max_seq_len ", max_seq_len);
  warn("ROWS_TRUNCATED", summary.truncated, base::StrCat(longer, " and are truncated"));
  warn("ROWS_DROPPED", summary.dropped, base::StrCat(longer, " and are dropped"));
  warn("ROWS_WITHOUT_LOSS", summary.without_loss, "have no trained token and are left out");
  warn("PROMPT_BOUNDARY_MERGED", summary.boundary_merged,
       "have a token that crosses the boundary between prompt and completion: it is trained, but the prompt alone has "
       "other tokens; move blanks from the end of the prompt to the start of the completion");
  warn("BOS_IN_TEXT", summary.began_with_added,
       "begin with the special token that the tokenizer adds before a text: it is not added again");
  warn("UNKNOWN_ROLES", summary.unknown_roles,
       "have a message whose role is none of system, developer, user, assistant, tool, function and ipython: the chat "
       "template may leave that message out, or write its role as it stands");
  warn("EMPTY_ANSWERS", summary.empty_answers,
       "have an answer without text: training on them teaches the model to answer nothing");
  return warnings;
}

}  // namespace nibble::data
