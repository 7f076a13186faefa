// Converts datasets to and from the API's messages; uploads and previews.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/dataset_service.pb.h"
#include "server/data/large_rows.h"
#include "server/data/row.h"
#include "server/jobs/job_spec.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/rpc/upload_reactor.h"
#include "server/store/dataset_store.h"

namespace nibble::rpc {

// Key in a dataset's meta.json. The value is the data::RowList (data/row_list_json.h) of the rows with an empty answer;
// the key is absent if there are no such rows.
inline constexpr char kEmptyAnswers[] = "empty_answers";

// Errors: DataLoss (ARTIFACT_CORRUPT): meta.json is damaged.
absl::StatusOr<v1::Dataset> ToProto(const store::StoredDataset& stored);
v1::DatasetFormat ToProto(data::RowFormat format);
// nullopt for UNSPECIFIED. Errors: Unimplemented names the format; InvalidArgument for an unknown number.
absl::StatusOr<std::optional<data::RowFormat>> FromProto(const char* field, v1::DatasetFormat format);
// The `data` of a job or of a preview. Errors: Unimplemented names the field; InvalidArgument.
absl::StatusOr<jobs::DataConfig> FromProto(const v1::DataConfig& config);

// Expects a header, then chunks, then a finish. If the header names a server file below import_root, no chunks are
// allowed. import_root "": server files are refused.
std::unique_ptr<UploadSink<v1::UploadDatasetRequest>> MakeDatasetUpload(const CallEnvironment& environment,
                                                                        store::DatasetStore& datasets,
                                                                        registry::UploadTable& uploads,
                                                                        const std::string& import_root,
                                                                        v1::Dataset* response);

// Limits of a preview. At a limit the preview ends with the rows found so far. Only `cancelled`, and a first row above
// max_bytes, are errors.
struct PreviewBounds {
  std::function<bool()> cancelled;           // called for each line and by data::Tokenize
  std::size_t max_bytes = 16u << 20;         // of the answer
  std::int64_t max_looked_rows = 10'000;     // rows read, dropped ones included
  std::size_t max_looked_bytes = 16u << 20;  // of the lines read; the row that passes the limit is the last
  data::AwaitTurn await_turn = {};           // passed to data::Tokenize
};

// The first rows of the file as training would see them. Errors: InvalidArgument DATASET_FORMAT names the line of a row
// that does not fit the format, has too many messages, or is too long while `overlong` is ERROR; TEMPLATE_ERROR;
// FIELD_VIOLATION (n, a field of data; also data.max_seq_len if the first row alone exceeds an answer); Unimplemented;
// DataLoss if the dataset is damaged; OUT_OF_DEVICE_MEMORY for a large row; Cancelled.
absl::Status Preview(const store::StoredDataset& stored, const registry::ModelText& model,
                     const v1::PreviewDatasetRequest& request, const PreviewBounds& bounds,
                     v1::PreviewDatasetResponse* response);

}  // namespace nibble::rpc
