#pragma once
#include "nibble/v1/upload_service.grpc.pb.h"
#include "server/registry/upload_table.h"
#include "server/rpc/call.h"

namespace nibble::rpc {

// Thread-safe.
class UploadService : public v1::UploadService::CallbackService {
 public:
  UploadService(CallEnvironment& environment, registry::UploadTable& uploads)
      : environment_(environment), uploads_(uploads) {}

  grpc::ServerUnaryReactor* GetUpload(grpc::CallbackServerContext*, const v1::GetUploadRequest*, v1::Upload*) override;
  grpc::ServerUnaryReactor* ListUploads(grpc::CallbackServerContext*, const v1::ListUploadsRequest*,
                                        v1::ListUploadsResponse*) override;
  grpc::ServerUnaryReactor* CancelUpload(grpc::CallbackServerContext*, const v1::CancelUploadRequest*,
                                         v1::CancelUploadResponse*) override;

 private:
  CallEnvironment& environment_;
  registry::UploadTable& uploads_;
};

}  // namespace nibble::rpc
