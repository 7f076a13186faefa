#include "server/registry/dataset_meta.h"

#include "server/base/status_macros.h"
#include "server/data/row_list_json.h"
#include "server/store/name_table.h"

namespace nibble::registry {

namespace {

constexpr char kFormat[] = "format";
constexpr char kRows[] = "rows";
constexpr char kSentBytes[] = "sent_bytes";        // of a plain text only
constexpr char kSentSha256[] = "sent_sha256";      // of a plain text only
constexpr char kFileName[] = "file_name";          // absent if the owner gave none
constexpr char kEmptyAnswers[] = "empty_answers";  // absent if there are no such rows

absl::StatusOr<data::RowFormat> ParseFormat(const store::StoredDataset& stored) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string name, base::GetString(stored.meta, kFormat, store::kDatasetMetaFile));
  return data::ParseRowFormat(name);
}

absl::StatusOr<DatasetMeta> Parse(const store::StoredDataset& stored) {
  DatasetMeta meta;
  NIBBLE_ASSIGN_OR_RETURN(meta.format, ParseFormat(stored));
  NIBBLE_ASSIGN_OR_RETURN(meta.rows, base::GetInt(stored.meta, kRows, store::kDatasetMetaFile));
  NIBBLE_ASSIGN_OR_RETURN(meta.sent_bytes, base::GetInt(stored.meta, kSentBytes, store::kDatasetMetaFile,
                                                        static_cast<std::int64_t>(stored.bytes)));
  NIBBLE_ASSIGN_OR_RETURN(meta.sent_sha256,
                          base::GetString(stored.meta, kSentSha256, store::kDatasetMetaFile, stored.sha256));
  NIBBLE_ASSIGN_OR_RETURN(meta.file_name, base::GetString(stored.meta, kFileName, store::kDatasetMetaFile, ""));
  if (stored.meta.contains(kEmptyAnswers)) {
    NIBBLE_ASSIGN_OR_RETURN(meta.empty_answers,
                            data::ParseRowList(stored.meta, kEmptyAnswers, store::kDatasetMetaFile));
  }
  return meta;
}

}  // namespace

absl::StatusOr<DatasetMeta> MetaOf(const store::StoredDataset& stored) {
  auto meta = Parse(stored);
  if (!meta.ok()) return store::DamagedError("dataset", stored.name);
  return meta;
}

absl::StatusOr<data::RowFormat> FormatOf(const store::StoredDataset& stored) {
  auto format = ParseFormat(stored);
  if (!format.ok()) return store::DamagedError("dataset", stored.name);
  return format;
}

base::Json LinesMeta(const data::FileSummary& summary) {
  base::Json meta = base::Json::object();
  meta[kFormat] = data::Name(summary.format);
  meta[kRows] = summary.num_rows;
  if (summary.empty_answers.count > 0) meta[kEmptyAnswers] = data::RowListJson(summary.empty_answers);
  return meta;
}

base::Json PlainTextMeta(std::size_t sent_bytes, const std::string& sent_sha256) {
  base::Json meta = base::Json::object();
  meta[kFormat] = data::Name(data::RowFormat::kText);
  meta[kRows] = 1;
  meta[kSentBytes] = sent_bytes;
  meta[kSentSha256] = sent_sha256;
  return meta;
}

void SetFileName(base::Json& meta, const std::string& file_name) {
  if (!file_name.empty()) meta[kFileName] = file_name;
}

}  // namespace nibble::registry
