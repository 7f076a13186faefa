#include "server/rpc/upload_service.h"

#include <cstdio>
#include <optional>

#include "server/base/status_macros.h"
#include "server/rpc/page.h"
#include "server/rpc/time.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace {

v1::UploadState StateOf(registry::UploadState state) {
  switch (state) {
    case registry::UploadState::kReceiving: return v1::UPLOAD_STATE_RECEIVING;
    case registry::UploadState::kInterrupted: return v1::UPLOAD_STATE_INTERRUPTED;
    case registry::UploadState::kFinishing: return v1::UPLOAD_STATE_FINISHING;
    case registry::UploadState::kFinished: return v1::UPLOAD_STATE_FINISHED;
  }
  return v1::UPLOAD_STATE_UNSPECIFIED;
}

v1::Upload Shown(const registry::UploadInfo& upload) {
  v1::Upload out;
  out.set_upload_id(upload.id);
  out.set_kind(upload.kind == registry::UploadKind::kDataset ? v1::UPLOAD_KIND_DATASET : v1::UPLOAD_KIND_MODEL);
  out.set_state(StateOf(upload.state));
  out.set_name(upload.name);
  out.set_committed_bytes(upload.bytes);
  out.set_num_files(upload.num_files);
  *out.mutable_create_time() = ToProto(upload.created);
  if (upload.expires != absl::InfiniteFuture()) *out.mutable_expire_time() = ToProto(upload.expires);
  out.set_principal(upload.owner.name);
  return out;
}

// A text that sorts like the upload's number.
std::string KeyOf(const registry::UploadInfo& upload) {
  char key[24];
  std::snprintf(key, sizeof key, "%020llu", static_cast<unsigned long long>(upload.number));
  return key;
}

}  // namespace

grpc::ServerUnaryReactor* UploadService::GetUpload(grpc::CallbackServerContext* context,
                                                   const v1::GetUploadRequest* request, v1::Upload* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.UploadService/GetUpload",
                       [=, this](const Call& call) -> absl::Status {
                         NIBBLE_ASSIGN_OR_RETURN(const registry::UploadInfo upload,
                                                 uploads_.Get(call.principal(), request->upload_id()));
                         *response = Shown(upload);
                         return absl::OkStatus();
                       });
}

grpc::ServerUnaryReactor* UploadService::ListUploads(grpc::CallbackServerContext* context,
                                                     const v1::ListUploadsRequest* request,
                                                     v1::ListUploadsResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.UploadService/ListUploads", [=, this](const Call& call) -> absl::Status {
        const auto row_of = [](const registry::UploadInfo& one) -> absl::StatusOr<std::optional<v1::Upload>> {
          return Shown(one);
        };
        NIBBLE_ASSIGN_OR_RETURN(
            *response->mutable_next_page_token(),
            FillPage(uploads_.List(call.principal()), KeyOf, request->page_size(), request->page_token(),
                     environment_.max_page_bytes, row_of, *response->mutable_uploads()));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* UploadService::CancelUpload(grpc::CallbackServerContext* context,
                                                      const v1::CancelUploadRequest* request,
                                                      v1::CancelUploadResponse*) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.UploadService/CancelUpload",
      [=, this](const Call& call) -> absl::Status { return uploads_.Cancel(call.principal(), request->upload_id()); });
}

}  // namespace nibble::rpc
