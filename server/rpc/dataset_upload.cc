// UploadDataset: header, chunks, finish. Implements MakeDatasetUpload of dataset_proto.h.
#include <algorithm>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/registry/uploaded_dataset.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/status.h"
#include "server/rpc/tracked_upload.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;
using registry::UploadedDataset;

constexpr std::size_t kMaxFileNameBytes = 255;

// The name is only shown, so it may be any text of one line.
absl::Status CheckFileName(const std::string& name) {
  if (name.size() > kMaxFileNameBytes) {
    return FieldError("header.file_name", StrCat("has ", name.size(), " bytes, wanted at most ", kMaxFileNameBytes));
  }
  const auto is_control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control))
    return FieldError("header.file_name", "has a control character, wanted text of one line");
  return absl::OkStatus();
}

class DatasetUpload final : public TrackedUpload<v1::UploadDatasetRequest, v1::UploadDatasetHeader, UploadedDataset> {
 public:
  DatasetUpload(const CallEnvironment& environment, store::DatasetStore& datasets, registry::UploadTable& uploads,
                const std::string& import_root, v1::Dataset* response)
      : TrackedUpload(environment, uploads, registry::UploadKind::kDataset),
        max_line_bytes_(environment.max_dataset_line_bytes),
        datasets_(datasets),
        import_root_(import_root),
        response_(response) {}

 private:
  absl::Status TakeHeader(const v1::UploadDatasetHeader& header) override {
    NIBBLE_RETURN_IF_ERROR(base::CheckName("header.name", header.name()));
    if (header.field_map_size() > 0) return Unimplemented("UploadDatasetHeader.field_map");
    NIBBLE_RETURN_IF_ERROR(CheckFileName(header.file_name()));
    if (header.has_size_bytes() && header.size_bytes() < 0) {
      return FieldError("header.size_bytes", StrCat("is ", header.size_bytes(), ", wanted 0 or more"));
    }
    const auto limit = static_cast<std::int64_t>(datasets_.limits().max_file_bytes);
    if (header.size_bytes() > limit) {
      return base::WithReason(
          absl::ResourceExhaustedError(StrCat("size_bytes: ", header.size_bytes(), ", the limit is ", limit)),
          "UPLOAD_TOO_LARGE", {{"max_bytes", std::to_string(limit)}});
    }
    if (header.has_server_path() && header.resume_offset() > 0) {
      return FieldError("header.resume_offset", "applies to chunks only, not to server_path");
    }
    return Open(header, header.size_bytes());
  }
  absl::StatusOr<std::unique_ptr<registry::UploadContent>> MakeContent(const v1::UploadDatasetHeader& header) override {
    registry::NewDataset dataset;
    dataset.name = header.name();
    NIBBLE_ASSIGN_OR_RETURN(dataset.format, FromProto("header.format", header.format()));
    dataset.max_line_bytes = max_line_bytes_;
    if (header.has_server_path()) dataset.server_path = header.server_path();
    dataset.import_root = import_root_;
    dataset.file_name = header.file_name();
    NIBBLE_ASSIGN_OR_RETURN(auto content, UploadedDataset::Begin(datasets_, std::move(dataset)));
    return std::unique_ptr<registry::UploadContent>(std::move(content));
  }
  absl::StatusOr<bool> TakeNext(const v1::UploadDatasetRequest& message, UploadedDataset& content) override {
    switch (message.message_case()) {
      case v1::UploadDatasetRequest::kChunk: return TakeChunk(message.chunk(), content);
      case v1::UploadDatasetRequest::kFinish: return TakeFinish(message.finish(), content);
      default: return FieldError("message", "is not set, wanted header, chunk or finish");
    }
  }
  absl::StatusOr<bool> TakeChunk(const std::string& chunk, UploadedDataset& content) {
    if (content.from_server()) return FieldError("chunk", "was sent with header.server_path, wanted only one of them");
    NIBBLE_RETURN_IF_ERROR(CheckChunk(chunk));
    NIBBLE_RETURN_IF_ERROR(content.Append(chunk, stream()));
    return false;
  }
  absl::StatusOr<bool> TakeFinish(const v1::UploadFinish& finish, UploadedDataset& content) {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, content.Finish(finish.sha256(), stream()));
    NIBBLE_ASSIGN_OR_RETURN(*response_, ToProto(stored));
    return true;
  }

  const std::size_t max_line_bytes_;
  store::DatasetStore& datasets_;
  const std::string& import_root_;
  v1::Dataset* const response_;
};

}  // namespace

std::unique_ptr<UploadSink<v1::UploadDatasetRequest>> MakeDatasetUpload(const CallEnvironment& environment,
                                                                        store::DatasetStore& datasets,
                                                                        registry::UploadTable& uploads,
                                                                        const std::string& import_root,
                                                                        v1::Dataset* response) {
  return std::make_unique<DatasetUpload>(environment, datasets, uploads, import_root, response);
}

}  // namespace nibble::rpc
