// Datasets as the API shows them; uploads and previews.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "nibble/v1/dataset_service.pb.h"
#include "server/data/large_rows.h"
#include "server/data/record.h"
#include "server/jobs/job_spec.h"
#include "server/rpc/text_cache.h"
#include "server/rpc/upload_reactor.h"
#include "server/rpc/upload_table.h"
#include "server/store/dataset_store.h"

namespace nibble::rpc {

// DataLoss (ARTIFACT_CORRUPT) where its meta.json is not what a server wrote.
absl::StatusOr<v1::Dataset> ToProto(const store::StoredDataset& stored);
absl::StatusOr<data::Format> FormatOf(const store::StoredDataset& stored);
v1::DatasetFormat ToProto(data::Format format);
// Nothing for UNSPECIFIED; Unimplemented names a format that is not built.
absl::StatusOr<std::optional<data::Format>> FromProto(const char* field, v1::DatasetFormat format);
// The `data` of a job or of a preview. Unimplemented names a field that is not built.
absl::StatusOr<jobs::DataConfig> FromProto(const v1::DataConfig& config);

// header, chunks or a file below import_root ("": none is taken), finish.
std::unique_ptr<UploadSink<v1::UploadDatasetRequest>> MakeDatasetUpload(const Edge& edge, store::DatasetStore& datasets,
                                                                        UploadTable& uploads, const std::string& import_root,
                                                                        v1::Dataset* response);

// When a preview looks no further: an answer with the rows found until then, but for `cancelled`.
struct PreviewBounds {
  std::function<bool()> cancelled;           // asked at each line, and as data::Tokenise asks it
  std::size_t max_bytes = 16u << 20;         // of the answer
  std::int64_t max_looked_rows = 10'000;     // of which most may have been dropped
  std::size_t max_looked_bytes = 16u << 20;  // of their lines; the row that passes it is the last
  data::AwaitTurn await_turn = {};           // as of data::Tokenise
};

// The first rows of the file as training would see them. InvalidArgument (DATASET_FORMAT) names the line of a row that is none of
// its format, or that is too long where that is an error; FIELD_VIOLATION data.max_seq_len where the first row alone is more than an
// answer; OUT_OF_DEVICE_MEMORY of a large row; Cancelled.
absl::Status Preview(const store::StoredDataset& stored, const ModelText& model, const v1::PreviewDatasetRequest& request,
                     const PreviewBounds& bounds, v1::PreviewDatasetResponse* response);

}  // namespace nibble::rpc
