#include "server/rpc/dataset_proto.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/data/example.h"
#include "server/registry/dataset_meta.h"
#include "server/rpc/page.h"
#include "server/rpc/status.h"
#include "server/rpc/time.h"

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

}  // namespace

absl::StatusOr<v1::Dataset> ToProto(const store::StoredDataset& stored) {
  NIBBLE_ASSIGN_OR_RETURN(const registry::DatasetMeta meta, registry::MetaOf(stored));
  v1::Dataset out;
  out.set_name(stored.name);
  out.set_format(ToProto(meta.format));
  out.set_rows(meta.rows);
  out.set_bytes(meta.sent_bytes);
  out.set_sha256(meta.sent_sha256);
  *out.mutable_create_time() = ToProto(stored.created);
  out.set_etag(store::Etag(stored));
  out.set_file_name(meta.file_name);
  data::DataSummary summary;
  summary.num_rows = meta.rows;
  summary.empty_answers = meta.empty_answers;
  AddWarnings(data::RowWarnings(summary, /*max_seq_len=*/0), *out.mutable_warnings());
  return out;
}

namespace {

constexpr std::size_t kMaxBytesOfCounts = 128;  // of all numbers in an answer
constexpr std::size_t kMaxBytesOfFrame = 11;    // of a row's tag and length

absl::StatusOr<plan::PreviewOptions> OptionsOf(const v1::PreviewDatasetRequest& request) {
  plan::PreviewOptions out;
  if (request.has_n()) out.num_rows = request.n();
  NIBBLE_ASSIGN_OR_RETURN(out.data, FromProto(request.data()));
  out.default_max_seq_len = !request.data().has_max_seq_len();
  return out;
}

v1::PreviewRow RowOf(const plan::PreviewRow& row) {
  v1::PreviewRow out;
  out.set_row(row.line);
  out.set_part(static_cast<std::int32_t>(row.part));
  out.set_text(ToUtf8(row.text));
  out.mutable_token_ids()->Add(row.token_ids.begin(), row.token_ids.end());
  out.mutable_trained()->Add(row.trained.begin(), row.trained.end());
  for (const std::string& text : row.token_texts) out.add_token_texts(ToUtf8(text));
  out.set_truncated_tokens(static_cast<std::int32_t>(row.num_cut_off));
  return out;
}

void PutSummary(const plan::PreviewSummary& summary, v1::PreviewDatasetResponse& out) {
  out.set_total_rows(summary.total_rows);
  out.set_looked_rows(summary.looked_rows);
  out.set_truncated_rows(summary.truncated_rows);
  out.set_dropped_rows(summary.dropped_rows);
  out.set_split_rows(summary.split_rows);
  AddWarnings(summary.warnings, *out.mutable_warnings());
}

// The warnings come last and may not fit: removes the last rows until they do.
void RemoveRowsThatDoNotFit(std::size_t max_bytes, v1::PreviewDatasetResponse& out) {
  while (out.rows_size() > 0 && out.ByteSizeLong() > max_bytes) {
    const v1::PreviewRow& last = out.rows(out.rows_size() - 1);
    out.set_tokens(out.tokens() - last.token_ids_size());
    out.set_trainable_tokens(out.trainable_tokens() - std::count(last.trained().begin(), last.trained().end(), true));
    out.mutable_rows()->RemoveLast();
  }
}

}  // namespace

absl::Status Preview(const store::StoredDataset& stored, const registry::ModelText& model,
                     const v1::PreviewDatasetRequest& request, const plan::PreviewBounds& bounds, std::size_t max_bytes,
                     v1::PreviewDatasetResponse* response) {
  NIBBLE_ASSIGN_OR_RETURN(const plan::PreviewOptions options, OptionsOf(request));
  std::size_t bytes = kMaxBytesOfCounts;
  const auto take = [&](const plan::PreviewRow& row) -> absl::StatusOr<bool> {
    v1::PreviewRow made = RowOf(row);
    const std::size_t row_bytes = made.ByteSizeLong() + kMaxBytesOfFrame;
    if (bytes + row_bytes > max_bytes) {
      if (response->rows_size() > 0) return false;
      return FieldError("data.max_seq_len",
                        StrCat("line ", row.line, " becomes ", row_bytes, " bytes, an answer holds at most ", max_bytes,
                               " (--max_send_bytes)"));
    }
    bytes += row_bytes;
    response->set_tokens(response->tokens() + made.token_ids_size());
    response->set_trainable_tokens(response->trainable_tokens() + row.num_trained);
    *response->add_rows() = std::move(made);
    return true;
  };
  NIBBLE_ASSIGN_OR_RETURN(const plan::PreviewSummary summary,
                          plan::PreviewDataset(stored, model, options, bounds, take));
  PutSummary(summary, *response);
  RemoveRowsThatDoNotFit(max_bytes, *response);
  return absl::OkStatus();
}

}  // namespace nibble::rpc
