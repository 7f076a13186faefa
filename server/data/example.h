// Converts rows to tokens, and marks every token that counts in the loss.
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
#include "server/data/row.h"
#include "server/data/row_list.h"
#include "server/model/model_config.h"
#include "server/model/text_assets.h"

namespace nibble::data {

enum class Overlong { kTruncate, kDrop, kError, kSplit };
// How to treat a row that is too long. `policy` is a job's "split", "truncate", "drop" or "error", chosen for data
// of the format `chosen_for`. Data of another format (an evaluation set) follows "drop" and "error" too. Otherwise, and
// with an empty policy, it has the default of its own format: text is split, other formats are truncated.
Overlong OverlongFor(std::string_view policy, RowFormat chosen_for, RowFormat format);

struct TokenizeOptions {
  std::int64_t max_seq_len = 0;
  std::optional<Overlong> overlong = std::nullopt;  // unset: the format's default
  bool train_on_prompt = false;                     // prompt_completion and chat: loss on every token
  // Whether to add the special tokens that the tokenizer puts around a text. Unset: not in chat, whose template writes
  // its own.
  std::optional<bool> add_special_tokens = std::nullopt;
};

// text: the text, the tokenizer's own special tokens where the text does not have them already, and an end token.
//
// prompt_completion: prompt and completion as one text, and an end token. The loss covers the tokens that overlap the
// completion, and the end token.
//
// chat: the messages rendered by the model's template. The loss covers what the assistant wrote (RenderChat). "train"
// of a message, true or false, overrides its role and train_on_prompt.
//
// kSplit makes examples of max_seq_len tokens. If the last example would have a single token, and so no loss, the last
// two have max_seq_len - 1 and two tokens.
//
// Returns no example for a dropped row. Errors: InvalidArgument (TEMPLATE_ERROR, also for chat without a template; a
// row too long with kError); Cancelled when `cancelled` returns true, which is called before each rendering of a
// template and each piece of a large text; those of `await_turn`. Without `await_turn`, the memory of a row is not
// limited.
absl::StatusOr<std::vector<Example>> Tokenize(const Row& row, RowFormat format, const model::TextAssets& text,
                                              const model::ModelConfig& config, const TokenizeOptions& options,
                                              const base::Cancelled& cancelled = {}, const AwaitTurn& await_turn = {});

struct DataSummary {
  std::int64_t num_rows = 0;  // rows read
  RowList truncated;
  RowList dropped;              // too long
  RowList without_loss;         // no trained token; left out too
  RowList boundary_merged;      // Example::boundary_merged
  RowList began_with_added;     // Example::began_with_added
  RowList unknown_roles;        // chat: a message has a role that no usual template knows
  RowList empty_answers;        // Row::has_empty_answer
  std::int64_t num_tokens = 0;  // of all examples
  std::int64_t num_trained = 0;
  void Append(const DataSummary& later);  // of later lines
};

struct Dataset : DataSummary {
  ExampleList examples;
};

// Tokenizes one line of a file, updates the summary, and appends the examples that have a trained token. Skips a blank
// line. Errors name the line (AtLine). `cancelled` and `await_turn` as in Tokenize.
absl::Status AddLine(std::int64_t line_number, std::string_view line, RowFormat format, const model::TextAssets& text,
                     const model::ModelConfig& config, const TokenizeOptions& options, const base::Cancelled& cancelled,
                     const AwaitTurn& await_turn, std::vector<Example>* examples, DataSummary* summary);
// InvalidArgument (NO_TRAINABLE_TOKENS) if a whole file has no trained token.
absl::Status CheckTrainable(const DataSummary& summary);

// Loads a whole validated file into memory. Errors: InvalidArgument names the line (AtLine), or NO_TRAINABLE_TOKENS;
// Cancelled when `cancelled` returns true, which is called at each line and as in Tokenize.
absl::StatusOr<Dataset> LoadDataset(const std::string& path, RowFormat format, const model::TextAssets& text,
                                    const model::ModelConfig& config, const TokenizeOptions& options,
                                    const base::Cancelled& cancelled = {});

// Counts one row, whose examples are `pieces`, and adds its line to the lists of `summary` that apply. Keeps neither.
void NoteRow(std::int64_t line, const Row& row, const std::vector<Example>& pieces, DataSummary* summary);

// Warnings about rows for the user: ROWS_TRUNCATED, ROWS_DROPPED, ROWS_WITHOUT_LOSS, PROMPT_BOUNDARY_MERGED,
// BOS_IN_TEXT, UNKNOWN_ROLES, EMPTY_ANSWERS. Each appears at most once, and only if there are such rows. The messages
// begin with `set`: EvaluationSet(name) for an evaluation set, empty for the training data.
struct RowWarning {
  std::string reason;
  std::string message;
  std::vector<std::int64_t> rows;  // RowList::lines
};
std::vector<RowWarning> RowWarnings(const DataSummary& summary, std::int64_t max_seq_len, const std::string& set = "");
std::string EvaluationSet(const std::string& name);

}  // namespace nibble::data
