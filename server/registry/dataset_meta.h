// meta.json of a stored dataset.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/data/row.h"
#include "server/data/row_list.h"
#include "server/store/dataset_store.h"

namespace nibble::registry {

struct DatasetMeta {
  data::RowFormat format = data::RowFormat::kText;
  std::int64_t rows = 0;
  // Of the file that the owner sent. It differs from the stored file if that was a plain text, which is stored as one
  // JSON row.
  std::int64_t sent_bytes = 0;
  std::string sent_sha256;
  data::RowList empty_answers;  // rows with an answer without text
  std::string file_name;        // of the owner's file; "": not given
};

// Errors: DataLoss (ARTIFACT_CORRUPT): meta.json is damaged.
absl::StatusOr<DatasetMeta> MetaOf(const store::StoredDataset& stored);
// Reads only the format, and ignores damage of the rest. Errors: as MetaOf.
absl::StatusOr<data::RowFormat> FormatOf(const store::StoredDataset& stored);

// meta.json of a file of JSON lines.
base::Json LinesMeta(const data::FileSummary& summary);
// meta.json of a plain text.
base::Json PlainTextMeta(std::size_t sent_bytes, const std::string& sent_sha256);
// Adds DatasetMeta::file_name to one of these.
void SetFileName(base::Json& meta, const std::string& file_name);

}  // namespace nibble::registry
