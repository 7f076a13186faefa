#pragma once
#include "nibble/v1/model_service.grpc.pb.h"
#include "server/rpc/call.h"
#include "server/rpc/model_library.h"
#include "server/rpc/model_loads.h"
#include "server/rpc/operations.h"
#include "server/rpc/worker_pool.h"

namespace nibble::rpc {

// Thread-safe.
class ModelService : public v1::ModelService::CallbackService {
 public:
  ModelService(Edge& edge, ModelLibrary& library, ModelLoads& loads, OperationTable& operations)
      : edge_(edge), library_(library), loads_(loads), operations_(operations) {}

  grpc::ServerReadReactor<v1::UploadModelRequest>* UploadModel(grpc::CallbackServerContext*,
                                                               v1::UploadModelResponse*) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext*, const v1::ListModelsRequest*,
                                       v1::ListModelsResponse*) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext*, const v1::GetModelRequest*, v1::Model*) override;
  grpc::ServerUnaryReactor* DeleteModel(grpc::CallbackServerContext*, const v1::DeleteModelRequest*,
                                        v1::DeleteModelResponse*) override;
  grpc::ServerUnaryReactor* ImportModel(grpc::CallbackServerContext*, const v1::ImportModelRequest*,
                                        google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* ConvertModel(grpc::CallbackServerContext*, const v1::ConvertModelRequest*,
                                         google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* ExportModel(grpc::CallbackServerContext*, const v1::ExportModelRequest*,
                                        google::longrunning::Operation*) override;
  grpc::ServerWriteReactor<v1::DownloadArtifactResponse>* DownloadArtifact(grpc::CallbackServerContext*,
                                                                           const v1::DownloadArtifactRequest*) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext*, const v1::LoadModelRequest*,
                                      v1::LoadModelResponse*) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext*, const v1::UnloadModelRequest*,
                                        v1::UnloadModelResponse*) override;
  grpc::ServerUnaryReactor* PublishCheckpoint(grpc::CallbackServerContext*, const v1::PublishCheckpointRequest*,
                                              v1::Model*) override;
  grpc::ServerUnaryReactor* VerifyModel(grpc::CallbackServerContext*, const v1::VerifyModelRequest*,
                                        v1::VerifyModelResponse*) override;

 private:
  Edge& edge_;
  ModelLibrary& library_;
  ModelLoads& loads_;
  OperationTable& operations_;
  // Those that read whole models: beside the workers that admit requests.
  WorkerPool readers_{2, /*max_waiting=*/64};
};

}  // namespace nibble::rpc
