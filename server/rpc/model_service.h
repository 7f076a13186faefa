#pragma once
#include "nibble/v1/model_service.grpc.pb.h"
#include "server/operations/operation_table.h"
#include "server/registry/model_library.h"
#include "server/rpc/call.h"
#include "server/rpc/model_answers.h"
#include "server/rpc/model_rows.h"
#include "server/serve/model_loads.h"

namespace nibble::rpc {

// Thread-safe.
class ModelService : public v1::ModelService::CallbackService {
 public:
  // Fills the cache of ListModels: 0.1 ms per model.
  ModelService(CallEnvironment& environment, registry::ModelLibrary& library, serve::ModelManager& manager,
               const ModelAnswers& answers, serve::ModelLoads& loads, operations::OperationTable& operations);

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
                                      google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext*, const v1::UnloadModelRequest*,
                                        v1::UnloadModelResponse*) override;
  grpc::ServerUnaryReactor* PublishCheckpoint(grpc::CallbackServerContext*, const v1::PublishCheckpointRequest*,
                                              google::longrunning::Operation*) override;
  grpc::ServerUnaryReactor* VerifyModel(grpc::CallbackServerContext*, const v1::VerifyModelRequest*,
                                        google::longrunning::Operation*) override;

 private:
  absl::StatusOr<operations::OperationResponse> Convert(const registry::ConvertRequest& request,
                                                        registry::OperationScope& scope);

  CallEnvironment& environment_;
  registry::ModelLibrary& library_;
  serve::ModelManager& manager_;
  const ModelAnswers& answers_;
  serve::ModelLoads& loads_;
  operations::OperationTable& operations_;
  ModelRows rows_;
};

}  // namespace nibble::rpc
