#include "server/plan/dataset_preview.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/plan/check_job.h"
#include "server/registry/dataset_meta.h"

namespace nibble::plan {

namespace {

using base::FieldError;
using base::StrCat;

constexpr std::int64_t kMaxRows = 100;         // to show
constexpr std::int64_t kMaxBytesOfToken = 16;  // an estimate: nearly all tokens are shorter
// Maximum bytes of a text row that a preview reads, unless one sequence needs more. Limits the memory of the encoder,
// which takes up to text::kEncoderBytesPerByte bytes per byte.
constexpr std::size_t kMaxText = 1u << 20;

// How to read the rows.
struct Reading {
  data::RowFormat format;
  data::TokenizeOptions options;
};

// `format`: of the dataset, unless the options give another.
absl::StatusOr<Reading> ReadingOf(data::RowFormat format, const model::ModelConfig& config,
                                  const PreviewOptions& options) {
  if (options.num_rows < 1 || options.num_rows > kMaxRows) {
    return FieldError("n", StrCat("is ", options.num_rows, ", wanted 1 to ", kMaxRows));
  }
  if (options.data.format.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(format, data::ParseRowFormat(*options.data.format));
  }
  jobs::JobSpec spec;
  spec.data = options.data;
  const std::int64_t limit = config.context_limit();
  if (options.default_max_seq_len) spec.data.max_seq_len = std::min(spec.data.max_seq_len, limit);
  if (spec.data.max_seq_len < 2 || spec.data.max_seq_len > limit) {
    return FieldError("data.max_seq_len",
                      StrCat("is ", spec.data.max_seq_len, ", wanted 2 to ", config.limit_text(limit)));
  }
  if (spec.data.overlong == "split" && format != data::RowFormat::kText) {
    return FieldError("data.overlong",
                      StrCat("is SPLIT, which works only for text rows; the format is ", data::Name(format)));
  }
  return Reading{format, OptionsOf(spec, format)};
}

// Maximum bytes of a text row that a preview reads. A row may be a whole book, so the preview reads only what it can
// show, but always more than one sequence (by kMarginBytes), to detect a row that is too long.
std::size_t TextBytes(std::int64_t num_rows, std::int64_t max_seq_len) {
  constexpr std::size_t kMarginBytes = 4096;
  const auto of_sequences = [&](std::int64_t n) {
    return static_cast<std::size_t>(n * max_seq_len * kMaxBytesOfToken) + kMarginBytes;
  };
  return std::min(of_sequences(num_rows), std::max(of_sequences(1), kMaxText));
}

absl::StatusOr<PreviewRow> RowOf(const data::Example& example, std::int64_t line, std::size_t part,
                                 const text::Tokenizer& tokenizer) {
  PreviewRow row;
  row.line = line;
  row.part = static_cast<std::int64_t>(part);
  row.token_ids = example.tokens;
  row.num_trained = example.num_trained();
  row.num_cut_off = example.num_cut_off;
  NIBBLE_ASSIGN_OR_RETURN(row.text, tokenizer.Decode(example.tokens, /*skip_special_tokens=*/false));
  for (std::size_t i = 0; i < example.tokens.size(); ++i) {
    row.trained.push_back(i > 0 && example.trained[i] != 0);  // the first token is never predicted
    NIBBLE_ASSIGN_OR_RETURN(std::string piece, tokenizer.Decode(std::span(&example.tokens[i], 1),
                                                                /*skip_special_tokens=*/false));
    row.token_texts.push_back(std::move(piece));
  }
  return row;
}

// Reads the lines of one preview.
class Preview {
 public:
  Preview(const registry::ModelText& model, const Reading& reading, std::int64_t num_rows, const PreviewBounds& bounds,
          const TakePreviewRow& take)
      : model_(model),
        reading_(reading),
        num_rows_(num_rows),
        text_bytes_(TextBytes(num_rows, reading.options.max_seq_len)),
        bounds_(bounds),
        take_(take) {}

  absl::Status Read(std::string_view rest) {
    for (std::int64_t number = 1;
         !full_ && !rest.empty() && num_shown_ < num_rows_ && summary_.looked_rows < bounds_.max_looked_rows &&
         looked_bytes_ < bounds_.max_looked_bytes;
         ++number) {
      const std::size_t end = rest.find('\n');
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      if (bounds_.cancelled && bounds_.cancelled())
        return absl::CancelledError(StrCat("cancelled at line ", number, " of the data"));
      if (data::IsBlankLine(line)) continue;
      looked_bytes_ += line.size();
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<data::Example> pieces, Tokenize(number, line));
      Count(pieces);
      NIBBLE_RETURN_IF_ERROR(Show(number, pieces));
    }
    return absl::OkStatus();
  }

  PreviewSummary Summary() {
    summary_.warnings = data::RowWarnings(seen_, reading_.options.max_seq_len);
    return std::move(summary_);
  }

 private:
  // Errors name the line.
  absl::StatusOr<std::vector<data::Example>> Tokenize(std::int64_t number, std::string_view line) {
    auto row = data::ParseRow(line, reading_.format);
    if (!row.ok()) return data::AtLine(number, row.status());
    if (const absl::Status few = data::CheckMessages(*row); !few.ok()) return data::AtLine(number, few);
    if (row->text.size() > text_bytes_) row->text.resize(base::WholeCharacters(row->text, text_bytes_));
    auto pieces = data::Tokenize(*row, reading_.format, model_.assets, model_.config, reading_.options,
                                 bounds_.cancelled, bounds_.await_turn);
    if (!pieces.ok()) return data::AtLine(number, pieces.status());
    data::NoteRow(number, *row, *pieces, &seen_);
    return pieces;
  }
  void Count(const std::vector<data::Example>& pieces) {
    ++summary_.looked_rows;
    if (pieces.empty()) ++summary_.dropped_rows;
    if (pieces.size() > 1) ++summary_.split_rows;
    if (!pieces.empty() && pieces[0].num_cut_off > 0) ++summary_.truncated_rows;
  }
  absl::Status Show(std::int64_t number, const std::vector<data::Example>& pieces) {
    for (std::size_t part = 0; part < pieces.size() && num_shown_ < num_rows_; ++part) {
      NIBBLE_ASSIGN_OR_RETURN(const PreviewRow row, RowOf(pieces[part], number, part, *model_.assets.tokenizer));
      NIBBLE_ASSIGN_OR_RETURN(const bool taken, take_(row));
      full_ = !taken;
      if (full_) break;
      ++num_shown_;
    }
    return absl::OkStatus();
  }

  const registry::ModelText& model_;
  const Reading& reading_;
  const std::int64_t num_rows_;
  const std::size_t text_bytes_;
  const PreviewBounds& bounds_;
  const TakePreviewRow& take_;
  std::int64_t num_shown_ = 0;
  bool full_ = false;  // `take` refused a row
  std::size_t looked_bytes_ = 0;
  data::DataSummary seen_;
  PreviewSummary summary_;
};

}  // namespace

absl::StatusOr<PreviewSummary> PreviewDataset(const store::StoredDataset& stored, const registry::ModelText& model,
                                              const PreviewOptions& options, const PreviewBounds& bounds,
                                              const TakePreviewRow& take) {
  NIBBLE_ASSIGN_OR_RETURN(const registry::DatasetMeta meta, registry::MetaOf(stored));
  NIBBLE_ASSIGN_OR_RETURN(const Reading reading, ReadingOf(meta.format, model.config, options));
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(stored.data_path));
  Preview preview(model, reading, options.num_rows, bounds, take);
  NIBBLE_RETURN_IF_ERROR(preview.Read(file->text()));
  PreviewSummary summary = preview.Summary();
  summary.total_rows = meta.rows;
  return summary;
}

}  // namespace nibble::plan
