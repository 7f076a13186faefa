// From a record to tokens, with a mark on every token that the loss is taken of.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/data/example_list.h"
#include "server/data/large_rows.h"
#include "server/data/record.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"

namespace nibble::data {

enum class Overlong { kTruncate, kDrop, kError, kSplit };
// What becomes of a record that is too long: `policy` is a job's "split", "truncate", "drop" or "error", chosen for data of the
// format `chosen_for`. Data of another format (a set to evaluate on) are dropped or refused alike, and otherwise have their own
// format's default, as with an empty policy: text is split, the others are truncated.
Overlong OverlongFor(std::string_view policy, Format chosen_for, Format format);

struct TokeniseOptions {
  std::int64_t max_seq_len = 0;
  std::optional<Overlong> overlong = std::nullopt;  // unset: the format's default
  bool train_on_prompt = false;                     // prompt_completion and chat: loss on every token
  // The special tokens that the tokenizer itself puts around a text. Unset: none in chat, whose template writes its own.
  std::optional<bool> add_special_tokens = std::nullopt;
};

// text: the tokenizer's own special tokens, none of them twice, and an end token.
// prompt_completion: prompt and completion as one text and an end token; the loss is on tokens that overlap the completion.
// chat: messages through the model's template; the loss is on what the assistant wrote (RenderChat). "train" of a message, true or
// false, wins over its role and over train_on_prompt.
// A text is split into examples of max_seq_len tokens. Where the end token would be alone in the last one, and so without a loss, the two
// last have max_seq_len - 1 and two tokens.
// Nothing is returned for a record that was dropped. Errors: InvalidArgument (TEMPLATE_ERROR, also for chat without a template;
// a record too long with kError); Cancelled once `cancelled`, which is asked before each rendering of a template and each piece of a
// large text, says so; those of `await_turn`. Without `await_turn` a row takes what memory it needs.
absl::StatusOr<std::vector<Example>> Tokenise(const Record& record, Format format, const model::TextAssets& text,
                                              const model::ModelConfig& config, const TokeniseOptions& options,
                                              const base::Cancelled& cancelled = {}, const AwaitTurn& await_turn = {});

inline constexpr int kMaxNamedRows = 20;

// Rows of a file that something became of: how many, and where the first of them are.
struct RowList {
  std::int64_t count = 0;
  std::vector<std::int64_t> lines;  // of the file, from 1; at most kMaxNamedRows
  void Add(std::int64_t line);
  void Append(const RowList& later);  // of lines behind these
};

struct DataSummary {
  std::int64_t num_rows = 0;  // records read
  RowList truncated;
  RowList dropped;            // too long
  RowList without_loss;       // no token of them is trained: left out too
  RowList boundary_merged;    // Example::boundary_merged
  RowList began_with_added;   // Example::began_with_added
  std::int64_t num_tokens = 0;   // of all examples
  std::int64_t num_trained = 0;
  void Append(const DataSummary& later);  // of lines behind these
};

struct Dataset : DataSummary {
  ExampleList examples;
};

// Tokenises one line of a file, notes what became of it, and appends the examples that have a trained token. A blank line is no row.
// Errors name the line (AtLine); Cancelled and `await_turn` as of Tokenise.
absl::Status AddLine(std::int64_t line_number, std::string_view line, Format format, const model::TextAssets& text,
                     const model::ModelConfig& config, const TokeniseOptions& options, const base::Cancelled& cancelled,
                     const AwaitTurn& await_turn, std::vector<Example>* examples, DataSummary* summary);
// InvalidArgument (NO_TRAINABLE_TOKENS) when no token of a whole file is trained.
absl::Status CheckTrainable(const DataSummary& summary);

// A whole validated file, in memory. InvalidArgument names the line (AtLine); NO_TRAINABLE_TOKENS when no token of it is trained;
// Cancelled once `cancelled`, which is asked at each line and as Tokenise asks it, says so.
absl::StatusOr<Dataset> LoadDataset(const std::string& path, Format format, const model::TextAssets& text,
                                    const model::ModelConfig& config, const TokeniseOptions& options,
                                    const base::Cancelled& cancelled = {});

// Counts one record and its examples, and names its line where it was truncated, dropped, has no loss, a merged boundary or a special
// token of its own. Examples are not taken.
void NoteRow(std::int64_t line, const std::vector<Example>& pieces, DataSummary* summary);

// What the user should know about the rows: ROWS_TRUNCATED, ROWS_DROPPED, ROWS_WITHOUT_LOSS, PROMPT_BOUNDARY_MERGED, BOS_IN_TEXT; each
// at most once, and only where there are such rows. The messages begin with `set`: of a set to evaluate on EvaluationSet(its name), of the
// rows to train on nothing.
struct RowWarning {
  std::string reason;
  std::string message;
  std::vector<std::int64_t> rows;  // RowList::lines
};
std::vector<RowWarning> RowWarnings(const DataSummary& summary, std::int64_t max_seq_len, const std::string& set = "");
std::string EvaluationSet(const std::string& name);

}  // namespace nibble::data
