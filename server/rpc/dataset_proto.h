// Datasets as the API shows them; uploads and previews.
#pragma once
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "nibble/v1/dataset_service.pb.h"
#include "server/data/record.h"
#include "server/jobs/job_spec.h"
#include "server/rpc/text_cache.h"
#include "server/rpc/upload_reactor.h"
#include "server/store/dataset_store.h"

namespace nibble::rpc {

absl::StatusOr<v1::Dataset> ToProto(const store::StoredDataset& stored);
v1::DatasetFormat ToProto(data::Format format);
// Nothing for UNSPECIFIED; Unimplemented names a format that is not built.
absl::StatusOr<std::optional<data::Format>> FromProto(const char* field, v1::DatasetFormat format);
// The `data` of a job or of a preview. Unimplemented names a field that is not built.
absl::StatusOr<jobs::DataConfig> FromProto(const v1::DataConfig& config);

// header, chunks or a file below import_root ("": none is taken), finish.
std::unique_ptr<UploadSink<v1::UploadDatasetRequest>> MakeDatasetUpload(const Edge& edge, store::DatasetStore& datasets,
                                                                        const std::string& import_root, v1::Dataset* response);

// The first rows of the file as training would see them. InvalidArgument (DATASET_FORMAT) names the line of a row that is none of
// its format, or that is too long where that is an error.
absl::Status Preview(const store::StoredDataset& stored, const ModelText& model, const v1::PreviewDatasetRequest& request,
                     v1::PreviewDatasetResponse* response);

}  // namespace nibble::rpc
