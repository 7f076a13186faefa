// Converts datasets to and from the API's messages; uploads and previews.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nibble/v1/dataset_service.pb.h"
#include "server/data/row.h"
#include "server/jobs/job_spec.h"
#include "server/plan/dataset_preview.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/upload_reactor.h"
#include "server/store/dataset_store.h"

namespace nibble::rpc {

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

// Sends the stored file on workers, as fast as the client reads. Ends the stream. Errors: DataLoss: the file cannot be
// read, or its size has changed.
void SendDataset(std::shared_ptr<StreamReactor<v1::DownloadDatasetResponse>> stream,
                 const store::StoredDataset& stored);

// The first rows of the file as training would see them. The answer has at most max_bytes: it ends before the row that
// does not fit. Errors: those of plan::PreviewDataset; FIELD_VIOLATION of data.max_seq_len also if the first row alone
// exceeds max_bytes; Unimplemented (a field of data).
absl::Status Preview(const store::StoredDataset& stored, const registry::ModelText& model,
                     const v1::PreviewDatasetRequest& request, const plan::PreviewBounds& bounds, std::size_t max_bytes,
                     v1::PreviewDatasetResponse* response);

}  // namespace nibble::rpc
