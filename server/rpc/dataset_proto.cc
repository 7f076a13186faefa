#include "server/rpc/dataset_proto.h"

#include <algorithm>
#include <vector>

#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/example.h"
#include "server/data/row_list_json.h"
#include "server/plan/check_job.h"
#include "server/registry/dataset_format.h"
#include "server/rpc/page.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"
#include "server/store/name_table.h"

namespace nibble::rpc {

using base::FieldError;
using base::StrCat;

v1::DatasetFormat ToProto(data::RowFormat format) {
  switch (format) {
    case data::RowFormat::kText: return v1::DATASET_FORMAT_TEXT;
    case data::RowFormat::kPromptCompletion: return v1::DATASET_FORMAT_PROMPT_COMPLETION;
    case data::RowFormat::kChat: return v1::DATASET_FORMAT_CHAT;
  }
  return v1::DATASET_FORMAT_UNSPECIFIED;
}

absl::StatusOr<std::optional<data::RowFormat>> FromProto(const char* field, v1::DatasetFormat format) {
  switch (format) {
    case v1::DATASET_FORMAT_UNSPECIFIED: return std::optional<data::RowFormat>();
    case v1::DATASET_FORMAT_TEXT: return std::optional(data::RowFormat::kText);
    case v1::DATASET_FORMAT_PROMPT_COMPLETION: return std::optional(data::RowFormat::kPromptCompletion);
    case v1::DATASET_FORMAT_CHAT: return std::optional(data::RowFormat::kChat);
    case v1::DATASET_FORMAT_INSTRUCTION:
    case v1::DATASET_FORMAT_TOKENIZED: return Unimplemented(StrCat(field, " ", v1::DatasetFormat_Name(format)));
    default: return FieldError(field, StrCat("is ", static_cast<int>(format), ", wanted a dataset format"));
  }
}

namespace {

void AddWarnings(const std::vector<data::RowWarning>& warnings,
                 google::protobuf::RepeatedPtrField<v1::RowWarning>& out) {
  for (const data::RowWarning& warning : warnings) {
    v1::RowWarning& made = *out.Add();
    made.set_reason(warning.reason);
    made.set_message(warning.message);
    made.mutable_row_ids()->Add(warning.rows.begin(), warning.rows.end());
  }
}

absl::StatusOr<v1::Dataset> Read(const store::StoredDataset& stored) {
  v1::Dataset out;
  out.set_name(stored.name);
  NIBBLE_ASSIGN_OR_RETURN(const data::RowFormat format, registry::FormatOf(stored));
  out.set_format(ToProto(format));
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t rows, base::GetInt(stored.meta, "rows", "meta.json"));
  out.set_rows(rows);
  // A plain text is stored as one JSON row. Show the size and digest of the file that its owner sent.
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t bytes, base::GetInt(stored.meta, "sent_bytes", "meta.json",
                                                                 static_cast<std::int64_t>(stored.bytes)));
  NIBBLE_ASSIGN_OR_RETURN(const std::string sha256,
                          base::GetString(stored.meta, "sent_sha256", "meta.json", stored.sha256));
  out.set_bytes(bytes);
  out.set_sha256(sha256);
  *out.mutable_create_time() = ToProto(stored.created);
  out.set_etag(store::Etag(stored));
  if (stored.meta.contains(kEmptyAnswers)) {
    data::DataSummary summary;
    summary.num_rows = rows;
    NIBBLE_ASSIGN_OR_RETURN(summary.empty_answers, data::ParseRowList(stored.meta, kEmptyAnswers, "meta.json"));
    AddWarnings(data::RowWarnings(summary, /*max_seq_len=*/0), *out.mutable_warnings());
  }
  return out;
}

}  // namespace

absl::StatusOr<v1::Dataset> ToProto(const store::StoredDataset& stored) {
  auto out = Read(stored);
  if (!out.ok()) return store::DamagedError("dataset", stored.name);
  return out;
}

namespace {

constexpr std::int64_t kMaxPreviewRows = 100;
constexpr std::int64_t kMaxBytesOfToken = 16;  // an estimate: nearly all tokens are shorter
// Maximum bytes of a text row that a preview reads, unless one sequence needs more. Limits the memory of the encoder,
// which takes up to text::kEncoderBytesPerByte bytes per byte.
constexpr std::size_t kMaxPreviewText = 1u << 20;
constexpr std::size_t kMaxBytesOfCounts = 128;  // of all numbers in an answer
constexpr std::size_t kMaxBytesOfFrame = 11;    // of a row's tag and length

struct PreviewShape {
  data::RowFormat format;
  data::TokenizeOptions options;
  std::int64_t n = 3;
};

absl::StatusOr<PreviewShape> ShapeOf(const store::StoredDataset& stored, const registry::ModelText& model,
                                     const v1::PreviewDatasetRequest& request) {
  PreviewShape shape;
  if (request.has_n()) {
    if (request.n() < 1 || request.n() > kMaxPreviewRows) {
      return FieldError("n", StrCat("is ", request.n(), ", wanted 1 to ", kMaxPreviewRows));
    }
    shape.n = request.n();
  }
  NIBBLE_ASSIGN_OR_RETURN(const jobs::DataConfig config, FromProto(request.data()));
  NIBBLE_ASSIGN_OR_RETURN(shape.format, registry::FormatOf(stored));
  if (config.format.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(shape.format, data::ParseRowFormat(*config.format));
  }
  jobs::JobSpec spec;
  spec.data = config;
  if (!request.data().has_max_seq_len())
    spec.data.max_seq_len = std::min(spec.data.max_seq_len, model.config.context_limit());
  if (spec.data.max_seq_len < 2 || spec.data.max_seq_len > model.config.context_limit()) {
    return FieldError("data.max_seq_len", StrCat("is ", spec.data.max_seq_len, ", wanted 2 to ",
                                                 model.config.limit_text(model.config.context_limit())));
  }
  if (config.overlong == "split" && shape.format != data::RowFormat::kText) {
    return FieldError("data.overlong",
                      StrCat("is SPLIT, which works only for text rows; the format is ", data::Name(shape.format)));
  }
  shape.options = plan::OptionsOf(spec, shape.format);
  return shape;
}

// Maximum bytes of a text row that a preview reads. A row may be a whole book, so the preview reads only what it can
// show, but always more than one sequence (by kMarginBytes), to detect a row that is too long.
std::size_t TextBytes(const PreviewShape& shape) {
  constexpr std::size_t kMarginBytes = 4096;
  const auto of_sequences = [&](std::int64_t n) {
    return static_cast<std::size_t>(n * shape.options.max_seq_len * kMaxBytesOfToken) + kMarginBytes;
  };
  return std::min(of_sequences(shape.n), std::max(of_sequences(1), kMaxPreviewText));
}

absl::StatusOr<v1::PreviewRow> RowOf(const data::Example& example, std::int64_t line,
                                     const registry::ModelText& model) {
  v1::PreviewRow row;
  row.set_row(line);
  row.set_truncated_tokens(static_cast<std::int32_t>(example.num_cut_off));
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          model.assets.tokenizer->Decode(example.tokens, /*skip_special_tokens=*/false));
  row.set_text(ToUtf8(text));
  for (std::size_t i = 0; i < example.tokens.size(); ++i) {
    row.add_token_ids(example.tokens[i]);
    row.add_trained(i > 0 && example.trained[i] != 0);  // the first token is never predicted
    NIBBLE_ASSIGN_OR_RETURN(const std::string piece, model.assets.tokenizer->Decode(std::span(&example.tokens[i], 1),
                                                                                    /*skip_special_tokens=*/false));
    row.add_token_texts(ToUtf8(piece));
  }
  return row;
}

// Adds the warnings, then removes the last rows until the answer fits max_bytes.
void AddWarningsThatFit(const data::Dataset& seen, std::int64_t max_seq_len, std::size_t max_bytes,
                        v1::PreviewDatasetResponse* response) {
  AddWarnings(data::RowWarnings(seen, max_seq_len), *response->mutable_warnings());
  while (response->rows_size() > 0 && response->ByteSizeLong() > max_bytes) {
    const v1::PreviewRow& last = response->rows(response->rows_size() - 1);
    response->set_tokens(response->tokens() - last.token_ids_size());
    response->set_trainable_tokens(response->trainable_tokens() -
                                   std::count(last.trained().begin(), last.trained().end(), true));
    response->mutable_rows()->RemoveLast();
  }
}

}  // namespace

absl::Status Preview(const store::StoredDataset& stored, const registry::ModelText& model,
                     const v1::PreviewDatasetRequest& request, const PreviewBounds& bounds,
                     v1::PreviewDatasetResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(const PreviewShape shape, ShapeOf(stored, model, request));
  NIBBLE_ASSIGN_OR_RETURN(const v1::Dataset dataset, ToProto(stored));
  response->set_total_rows(dataset.rows());
  NIBBLE_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(stored.data_path));
  std::string_view rest = file->text();
  std::int64_t line_number = 0;
  const std::size_t text_bytes = TextBytes(shape);
  std::size_t looked_bytes = 0;
  std::size_t bytes = kMaxBytesOfCounts;
  data::Dataset seen;
  bool full = false;
  while (!full && !rest.empty() && response->rows_size() < shape.n &&
         response->looked_rows() < bounds.max_looked_rows && looked_bytes < bounds.max_looked_bytes) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line_number;
    if (bounds.cancelled && bounds.cancelled())
      return absl::CancelledError(StrCat("cancelled at line ", line_number, " of the data"));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    looked_bytes += line.size();
    auto record = data::ParseRow(line, shape.format);
    if (!record.ok()) return data::AtLine(line_number, record.status());
    if (const absl::Status few = data::CheckMessages(*record); !few.ok()) return data::AtLine(line_number, few);
    if (record->text.size() > text_bytes) record->text = ToUtf8(record->text, text_bytes);
    const auto tokenized = data::Tokenize(*record, shape.format, model.assets, model.config, shape.options,
                                          bounds.cancelled, bounds.await_turn);
    if (!tokenized.ok()) return data::AtLine(line_number, tokenized.status());
    response->set_looked_rows(response->looked_rows() + 1);
    const std::vector<data::Example>& pieces = *tokenized;
    data::NoteRow(line_number, *record, pieces, &seen);
    if (pieces.empty()) response->set_dropped_rows(response->dropped_rows() + 1);
    if (pieces.size() > 1) response->set_split_rows(response->split_rows() + 1);
    if (!pieces.empty() && pieces[0].num_cut_off > 0) response->set_truncated_rows(response->truncated_rows() + 1);
    for (std::size_t part = 0; part < pieces.size() && response->rows_size() < shape.n; ++part) {
      NIBBLE_ASSIGN_OR_RETURN(v1::PreviewRow row, RowOf(pieces[part], line_number, model));
      row.set_part(static_cast<std::int32_t>(part));
      const std::size_t row_bytes = row.ByteSizeLong() + kMaxBytesOfFrame;
      if (bytes + row_bytes > bounds.max_bytes) {
        if (response->rows_size() == 0) {
          return FieldError("data.max_seq_len",
                            StrCat("line ", line_number, " becomes ", row_bytes, " bytes, an answer holds at most ",
                                   bounds.max_bytes, " (--max_send_bytes)"));
        }
        full = true;
        break;
      }
      bytes += row_bytes;
      response->set_tokens(response->tokens() + row.token_ids_size());
      response->set_trainable_tokens(response->trainable_tokens() + pieces[part].num_trained());
      *response->add_rows() = std::move(row);
    }
  }
  AddWarningsThatFit(seen, shape.options.max_seq_len, bounds.max_bytes, response);
  return absl::OkStatus();
}

}  // namespace nibble::rpc
