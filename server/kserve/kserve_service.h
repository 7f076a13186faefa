// KServe's V2 inference protocol with Triton's extensions, on the listener of the gRPC API. Each request becomes calls
// of that API in this process, which brings its limits, fairness and errors.
#pragma once
#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "inference/grpc_service.grpc.pb.h"
#include "server/base/mutex.h"
#include "server/kserve/inner_calls.h"
#include "server/kserve/statistics.h"
#include "server/rpc/call.h"

namespace nibble::kserve {

// Thread-safe.
class KServeService final : public inference::GRPCInferenceService::CallbackService {
 public:
  // `version`: of the server. `ready`: whether the server takes requests, called from any thread.
  KServeService(rpc::CallEnvironment& environment, std::string version, std::function<bool()> ready)
      : environment_(environment), version_(std::move(version)), ready_(std::move(ready)) {}

  // Until then, every call that needs the gRPC API fails with UNAVAILABLE. `channel`: to the server of this service
  // (grpc::Server::InProcessChannel).
  void Connect(const std::shared_ptr<grpc::Channel>& channel);

  grpc::ServerUnaryReactor* ServerLive(grpc::CallbackServerContext*, const inference::ServerLiveRequest*,
                                       inference::ServerLiveResponse*) override;
  grpc::ServerUnaryReactor* ServerReady(grpc::CallbackServerContext*, const inference::ServerReadyRequest*,
                                        inference::ServerReadyResponse*) override;
  grpc::ServerUnaryReactor* ModelReady(grpc::CallbackServerContext*, const inference::ModelReadyRequest*,
                                       inference::ModelReadyResponse*) override;
  grpc::ServerUnaryReactor* ServerMetadata(grpc::CallbackServerContext*, const inference::ServerMetadataRequest*,
                                           inference::ServerMetadataResponse*) override;
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext*, const inference::ModelMetadataRequest*,
                                          inference::ModelMetadataResponse*) override;
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext*, const inference::ModelInferRequest*,
                                       inference::ModelInferResponse*) override;
  grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>* ModelStreamInfer(
      grpc::CallbackServerContext*) override;
  grpc::ServerUnaryReactor* ModelConfig(grpc::CallbackServerContext*, const inference::ModelConfigRequest*,
                                        inference::ModelConfigResponse*) override;
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext*, const inference::ModelStatisticsRequest*,
                                            inference::ModelStatisticsResponse*) override;
  grpc::ServerUnaryReactor* RepositoryIndex(grpc::CallbackServerContext*, const inference::RepositoryIndexRequest*,
                                            inference::RepositoryIndexResponse*) override;
  grpc::ServerUnaryReactor* RepositoryModelLoad(grpc::CallbackServerContext*,
                                                const inference::RepositoryModelLoadRequest*,
                                                inference::RepositoryModelLoadResponse*) override;
  grpc::ServerUnaryReactor* RepositoryModelUnload(grpc::CallbackServerContext*,
                                                  const inference::RepositoryModelUnloadRequest*,
                                                  inference::RepositoryModelUnloadResponse*) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryStatus(grpc::CallbackServerContext*,
                                                     const inference::SystemSharedMemoryStatusRequest*,
                                                     inference::SystemSharedMemoryStatusResponse*) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryRegister(grpc::CallbackServerContext*,
                                                       const inference::SystemSharedMemoryRegisterRequest*,
                                                       inference::SystemSharedMemoryRegisterResponse*) override;
  grpc::ServerUnaryReactor* SystemSharedMemoryUnregister(grpc::CallbackServerContext*,
                                                         const inference::SystemSharedMemoryUnregisterRequest*,
                                                         inference::SystemSharedMemoryUnregisterResponse*) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryStatus(grpc::CallbackServerContext*,
                                                   const inference::CudaSharedMemoryStatusRequest*,
                                                   inference::CudaSharedMemoryStatusResponse*) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryRegister(grpc::CallbackServerContext*,
                                                     const inference::CudaSharedMemoryRegisterRequest*,
                                                     inference::CudaSharedMemoryRegisterResponse*) override;
  grpc::ServerUnaryReactor* CudaSharedMemoryUnregister(grpc::CallbackServerContext*,
                                                       const inference::CudaSharedMemoryUnregisterRequest*,
                                                       inference::CudaSharedMemoryUnregisterResponse*) override;
  grpc::ServerUnaryReactor* TraceSetting(grpc::CallbackServerContext*, const inference::TraceSettingRequest*,
                                         inference::TraceSettingResponse*) override;
  grpc::ServerUnaryReactor* LogSettings(grpc::CallbackServerContext*, const inference::LogSettingsRequest*,
                                        inference::LogSettingsResponse*) override;

 private:
  std::shared_ptr<const Stubs> stubs() const;
  // Runs start(incoming), which must end the call, if the caller is admitted and this service is connected.
  template <typename Start>
  grpc::ServerUnaryReactor* Begin(grpc::CallbackServerContext* context, const char* method, Start start);

  rpc::CallEnvironment& environment_;
  const std::string version_;
  const std::function<bool()> ready_;
  Statistics statistics_;
  mutable base::Mutex mutex_;
  std::shared_ptr<const Stubs> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::kserve
