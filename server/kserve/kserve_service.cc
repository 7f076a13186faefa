#include "server/kserve/kserve_service.h"

#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/kserve/infer_stream.h"
#include "server/kserve/infer_unary.h"
#include "server/kserve/model_description.h"
#include "server/kserve/repository.h"

namespace nibble::kserve {

namespace {

constexpr char kServerName[] = "triton";  // Triton's examples check it
constexpr const char* kExtensions[] = {"model_configuration", "model_repository", "parameters", "statistics"};

// A server that drains still says that it lives and that it is not ready.
absl::Status ToProbe(const absl::Status& admitted) {
  return base::Reason(admitted) == "DRAINING" ? absl::OkStatus() : admitted;
}

}  // namespace

void KServeService::Connect(const std::shared_ptr<grpc::Channel>& channel) {
  auto stubs = std::make_shared<const Stubs>(channel);
  base::MutexLock lock(mutex_);
  stubs_ = std::move(stubs);
}

std::shared_ptr<const Stubs> KServeService::stubs() const {
  base::MutexLock lock(mutex_);
  return stubs_;
}

template <typename Start>
grpc::ServerUnaryReactor* KServeService::Begin(grpc::CallbackServerContext* context, const char* method, Start start) {
  auto* call = new rpc::UnaryCall(environment_, context, method);
  auto connected = stubs();
  if (!call->call().admitted().ok() || connected == nullptr) {
    call->Done(call->call().admitted().ok() ? NotConnected() : call->call().admitted());
    return call;
  }
  start(std::make_shared<Incoming>(Incoming{call, ClientIdentity(call->call(), *context), std::move(connected)}));
  return call;
}

grpc::ServerUnaryReactor* KServeService::ServerLive(grpc::CallbackServerContext* context,
                                                    const inference::ServerLiveRequest*,
                                                    inference::ServerLiveResponse* response) {
  auto* call = new rpc::UnaryCall(environment_, context, "inference.GRPCInferenceService/ServerLive");
  response->set_live(true);
  call->Done(ToProbe(call->call().admitted()));
  return call;
}

grpc::ServerUnaryReactor* KServeService::ServerReady(grpc::CallbackServerContext* context,
                                                     const inference::ServerReadyRequest*,
                                                     inference::ServerReadyResponse* response) {
  auto* call = new rpc::UnaryCall(environment_, context, "inference.GRPCInferenceService/ServerReady");
  response->set_ready(ready_());
  call->Done(ToProbe(call->call().admitted()));
  return call;
}

grpc::ServerUnaryReactor* KServeService::ModelReady(grpc::CallbackServerContext* context,
                                                    const inference::ModelReadyRequest* request,
                                                    inference::ModelReadyResponse* response) {
  return Begin(context, "inference.GRPCInferenceService/ModelReady", [=](std::shared_ptr<Incoming> incoming) {
    v1::GetModelRequest get;
    get.set_name(request->name());
    const auto stubs = incoming->stubs;
    CallInner<v1::Model>(
        std::move(incoming), std::move(get),
        [stubs](auto... arguments) { stubs->models->async()->GetModel(arguments...); },
        [=](const std::shared_ptr<Incoming>& again, const grpc::Status& status, v1::Model& model) {
          const bool known = CheckVersion("version", request->name(), request->version()).ok();
          response->set_ready(status.ok() && known && model.loaded());
          // For Triton's clients, an unknown model is one that is not ready.
          again->call->Done(status.error_code() == grpc::NOT_FOUND ? absl::OkStatus() : FromInner(status));
        });
  });
}

grpc::ServerUnaryReactor* KServeService::ServerMetadata(grpc::CallbackServerContext* context,
                                                        const inference::ServerMetadataRequest*,
                                                        inference::ServerMetadataResponse* response) {
  return rpc::Unary(environment_, context, "inference.GRPCInferenceService/ServerMetadata", [&] {
    response->set_name(kServerName);
    response->set_version(version_);
    for (const char* extension : kExtensions) response->add_extensions(extension);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* KServeService::ModelMetadata(grpc::CallbackServerContext* context,
                                                       const inference::ModelMetadataRequest* request,
                                                       inference::ModelMetadataResponse* response) {
  return Begin(context, "inference.GRPCInferenceService/ModelMetadata", [=](std::shared_ptr<Incoming> incoming) {
    GetModel(std::move(incoming), "name", request->name(), request->version(),
             [response](const std::shared_ptr<Incoming>& again, v1::Model& model) {
               *response = ToMetadata(model);
               again->call->Done(absl::OkStatus());
             });
  });
}

grpc::ServerUnaryReactor* KServeService::ModelConfig(grpc::CallbackServerContext* context,
                                                     const inference::ModelConfigRequest* request,
                                                     inference::ModelConfigResponse* response) {
  return Begin(context, "inference.GRPCInferenceService/ModelConfig", [=](std::shared_ptr<Incoming> incoming) {
    GetModel(std::move(incoming), "name", request->name(), request->version(),
             [response](const std::shared_ptr<Incoming>& again, v1::Model& model) {
               *response->mutable_config() = ToConfig(model);
               again->call->Done(absl::OkStatus());
             });
  });
}

grpc::ServerUnaryReactor* KServeService::ModelInfer(grpc::CallbackServerContext* context,
                                                    const inference::ModelInferRequest* request,
                                                    inference::ModelInferResponse* response) {
  return Begin(context, "inference.GRPCInferenceService/ModelInfer", [=, this](std::shared_ptr<Incoming> incoming) {
    absl::StatusOr<InferCall> call = ParseInfer(*request, /*may_stream=*/false);
    if (!call.ok()) return incoming->call->Done(call.status());
    RunInfer(std::move(incoming), *std::move(call), statistics_, response);
  });
}

grpc::ServerBidiReactor<inference::ModelInferRequest, inference::ModelStreamInferResponse>*
KServeService::ModelStreamInfer(grpc::CallbackServerContext* context) {
  return InferStream::Begin(environment_, context, stubs(), statistics_);
}

grpc::ServerUnaryReactor* KServeService::ModelStatistics(grpc::CallbackServerContext* context,
                                                         const inference::ModelStatisticsRequest* request,
                                                         inference::ModelStatisticsResponse* response) {
  return Begin(context, "inference.GRPCInferenceService/ModelStatistics",
               [=, this](std::shared_ptr<Incoming> incoming) {
                 const auto add = [=, this](const v1::Model& model) {
                   *response->add_model_stats() = statistics_.Of(model.name());
                 };
                 const auto end = [=, this](Incoming& again) {
                   again.call->Done(CheckSize(*response, environment_.max_send_bytes));
                 };
                 if (request->name().empty()) {
                   return ListModels(
                       std::move(incoming),
                       [add](const v1::Model& model) {
                         if (model.loaded()) add(model);
                       },
                       end);
                 }
                 GetModel(std::move(incoming), "name", request->name(), request->version(),
                          [add, end](const std::shared_ptr<Incoming>& again, v1::Model& model) {
                            add(model);
                            end(*again);
                          });
               });
}

grpc::ServerUnaryReactor* KServeService::RepositoryIndex(grpc::CallbackServerContext* context,
                                                         const inference::RepositoryIndexRequest* request,
                                                         inference::RepositoryIndexResponse* response) {
  return Begin(
      context, "inference.GRPCInferenceService/RepositoryIndex", [=, this](std::shared_ptr<Incoming> incoming) {
        const absl::Status checked = CheckRepository(request->repository_name());
        if (!checked.ok()) return incoming->call->Done(checked);
        ListModels(
            std::move(incoming),
            [=](const v1::Model& model) {
              if (model.loaded() || !request->ready()) *response->add_models() = ToIndex(model);
            },
            [=, this](Incoming& again) { again.call->Done(CheckSize(*response, environment_.max_send_bytes)); });
      });
}

grpc::ServerUnaryReactor* KServeService::RepositoryModelLoad(grpc::CallbackServerContext* context,
                                                             const inference::RepositoryModelLoadRequest* request,
                                                             inference::RepositoryModelLoadResponse*) {
  return Begin(context, "inference.GRPCInferenceService/RepositoryModelLoad",
               [=](std::shared_ptr<Incoming> incoming) { LoadModel(std::move(incoming), *request); });
}

grpc::ServerUnaryReactor* KServeService::RepositoryModelUnload(grpc::CallbackServerContext* context,
                                                               const inference::RepositoryModelUnloadRequest* request,
                                                               inference::RepositoryModelUnloadResponse*) {
  return Begin(context, "inference.GRPCInferenceService/RepositoryModelUnload",
               [=](std::shared_ptr<Incoming> incoming) { UnloadModel(std::move(incoming), *request); });
}

// Methods that answer UNIMPLEMENTED.
#define NIBBLE_UNIMPLEMENTED(Name)                                                                                     \
  grpc::ServerUnaryReactor* KServeService::Name(grpc::CallbackServerContext* context, const inference::Name##Request*, \
                                                inference::Name##Response*) {                                          \
    return rpc::UnaryUnimplemented(environment_, context, "inference.GRPCInferenceService/" #Name);                    \
  }
NIBBLE_UNIMPLEMENTED(SystemSharedMemoryStatus)
NIBBLE_UNIMPLEMENTED(SystemSharedMemoryRegister)
NIBBLE_UNIMPLEMENTED(SystemSharedMemoryUnregister)
NIBBLE_UNIMPLEMENTED(CudaSharedMemoryStatus)
NIBBLE_UNIMPLEMENTED(CudaSharedMemoryRegister)
NIBBLE_UNIMPLEMENTED(CudaSharedMemoryUnregister)
NIBBLE_UNIMPLEMENTED(TraceSetting)
NIBBLE_UNIMPLEMENTED(LogSettings)
#undef NIBBLE_UNIMPLEMENTED

}  // namespace nibble::kserve
