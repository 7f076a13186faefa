// Uploads and downloads of a model's files.
#pragma once
#include <memory>

#include "nibble/v1/model_service.pb.h"
#include "server/registry/model_library.h"
#include "server/rpc/stream_reactor.h"
#include "server/rpc/upload_reactor.h"

namespace nibble::rpc {

// Expects a header, then for each file `file` and its chunks, then a finish.
std::unique_ptr<UploadSink<v1::UploadModelRequest>> MakeModelUpload(const CallEnvironment& environment,
                                                                    registry::ModelLibrary& library,
                                                                    v1::UploadModelResponse* response);

// Sends the files on workers, as fast as the client reads. Ends the stream.
void SendArtifact(std::shared_ptr<StreamReactor<v1::DownloadArtifactResponse>> stream, registry::ModelLibrary& library,
                  const v1::DownloadArtifactRequest& request);

}  // namespace nibble::rpc
