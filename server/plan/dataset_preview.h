// Shows the first rows of a dataset as the training of a job would see them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/data/example.h"
#include "server/data/large_rows.h"
#include "server/jobs/job_spec.h"
#include "server/registry/text_cache.h"
#include "server/store/dataset_store.h"

namespace nibble::plan {

struct PreviewOptions {
  std::int64_t num_rows = 3;  // to show
  jobs::DataConfig data;      // as in a job
  // data.max_seq_len is a default: if the model takes less, its limit is used instead.
  bool default_max_seq_len = true;
};

// Limits of the work. At a limit the preview ends with the rows found so far.
struct PreviewBounds {
  base::Cancelled cancelled = {};            // called for each line and by data::Tokenize
  std::int64_t max_looked_rows = 10'000;     // rows read, dropped ones included
  std::size_t max_looked_bytes = 16u << 20;  // of the lines read; the row that passes the limit is the last
  data::AwaitTurn await_turn = {};           // passed to data::Tokenize
};

// One example.
struct PreviewRow {
  std::int64_t line = 0;  // in the file, from 1
  std::int64_t part = 0;  // of a split row, from 0
  std::string text;       // with special tokens; may be invalid UTF-8, like token_texts
  std::vector<std::int32_t> token_ids;
  std::vector<bool> trained;  // for each token
  std::vector<std::string> token_texts;
  std::int64_t num_trained = 0;
  std::int64_t num_cut_off = 0;  // tokens that a truncated row has lost
};

// Counts of the rows that were read, with those that `take` refused.
struct PreviewSummary {
  std::int64_t total_rows = 0;  // of the whole dataset
  std::int64_t looked_rows = 0;
  std::int64_t truncated_rows = 0;
  std::int64_t dropped_rows = 0;
  std::int64_t split_rows = 0;
  std::vector<data::RowWarning> warnings;
};

// Receives the rows in their order. False: the row does not fit, and the preview ends. An error ends it too.
using TakePreviewRow = std::function<absl::StatusOr<bool>(const PreviewRow& row)>;

// Tokenizes rows from the beginning of the dataset until `take` has num_rows of them. Errors: InvalidArgument
// DATASET_FORMAT names the line of a row that does not fit the format, has too many messages, or is too long while
// `overlong` is "error"; TEMPLATE_ERROR; FIELD_VIOLATION (n, a field of data); DataLoss if the dataset is damaged;
// OUT_OF_DEVICE_MEMORY for a large row; Cancelled; those of `take`.
absl::StatusOr<PreviewSummary> PreviewDataset(const store::StoredDataset& stored, const registry::ModelText& model,
                                              const PreviewOptions& options, const PreviewBounds& bounds,
                                              const TakePreviewRow& take);

}  // namespace nibble::plan
