#include "server/rpc/model_service.h"

#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/begin_operation.h"
#include "server/rpc/model_name.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/model_requests.h"
#include "server/rpc/model_transfer.h"
#include "server/rpc/page.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace {

v1::Model Damaged(const store::StoredModel& stored) {
  v1::Model model;
  model.set_name(stored.name);
  model.set_damaged(true);
  return model;
}

}  // namespace

ModelService::ModelService(CallEnvironment& environment, registry::ModelLibrary& library, serve::ModelManager& manager,
                           const ModelAnswers& answers, serve::ModelLoads& loads,
                           operations::OperationTable& operations)
    : environment_(environment),
      library_(library),
      manager_(manager),
      answers_(answers),
      loads_(loads),
      operations_(operations) {
  rows_.Warm(library_.models().List());
}

grpc::ServerReadReactor<v1::UploadModelRequest>* ModelService::UploadModel(grpc::CallbackServerContext* context,
                                                                           v1::UploadModelResponse* response) {
  return UploadReactor<v1::UploadModelRequest>::Make(environment_, context, "nibble.v1.ModelService/UploadModel",
                                                     MakeModelUpload(environment_, library_, response));
}

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest* request,
                                                   v1::ListModelsResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/ListModels", [=, this](const Call&) -> absl::Status {
        const auto all = library_.models().List();
        rows_.Keep(all);
        const auto name_of = [](const store::StoredModel& one) { return one.name; };
        const auto row_of = [&](const store::StoredModel& one) -> absl::StatusOr<std::optional<v1::Model>> {
          if (one.damaged) return Damaged(one);
          absl::StatusOr<v1::Model> model = rows_.Get(one, manager_.IsLoaded(one.name));
          // The model was deleted after the names were listed: skip it.
          if (!model.ok() && absl::IsNotFound(library_.models().Get(one.name).status())) return std::nullopt;
          if (store::SaysDamaged(model.status())) return Damaged(one);
          return model;
        };
        NIBBLE_ASSIGN_OR_RETURN(*response->mutable_next_page_token(),
                                FillPage(all, name_of, request->page_size(), request->page_token(),
                                         environment_.max_page_bytes, row_of, *response->mutable_models()));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ModelService::GetModel(grpc::CallbackServerContext* context,
                                                 const v1::GetModelRequest* request, v1::Model* response) {
  return UnaryOnWorker(environment_, context, "nibble.v1.ModelService/GetModel",
                       [=, this](const Call&) -> absl::Status {
                         NIBBLE_ASSIGN_OR_RETURN(*response, answers_.Describe(request->name(), /*detailed=*/true));
                         return absl::OkStatus();
                       });
}

grpc::ServerUnaryReactor* ModelService::DeleteModel(grpc::CallbackServerContext* context,
                                                    const v1::DeleteModelRequest* request, v1::DeleteModelResponse*) {
  return UnaryOnWorker(environment_, context, "nibble.v1.ModelService/DeleteModel",
                       [=, this](const Call& call) -> absl::Status {
                         const auto etag = request->has_etag() ? std::optional(request->etag()) : std::nullopt;
                         return library_.models().Delete(request->name(), etag, call.principal().tenant);
                       });
}

grpc::ServerUnaryReactor* ModelService::ImportModel(grpc::CallbackServerContext* context,
                                                    const v1::ImportModelRequest* request,
                                                    google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/ImportModel", [=, this](const Call& call) -> absl::Status {
        const operations::OperationStart start =
            StartOf(call, "import", operations::OperationLane::kModels, *request, request->name());
        return Begin(
            operations_, start, [&] { return library_.importer().Check(FromProto(*request), start.owner); },
            [this, copy = FromProto(*request),
             owner = start.owner](registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
              NIBBLE_RETURN_IF_ERROR(library_.importer().Import(copy, owner, scope));
              return answers_.Made(copy.name);
            },
            response);
      });
}

absl::StatusOr<operations::OperationResponse> ModelService::Convert(const registry::ConvertRequest& request,
                                                                    registry::OperationScope& scope) {
  NIBBLE_ASSIGN_OR_RETURN(const registry::ConvertOutcome outcome, library_.converter().Convert(request, scope));
  if (!outcome.tolerance.ok()) return ModelAnswers::Exceeded(outcome);
  return answers_.Made(request.name);
}

grpc::ServerUnaryReactor* ModelService::ConvertModel(grpc::CallbackServerContext* context,
                                                     const v1::ConvertModelRequest* request,
                                                     google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/ConvertModel", [=, this](const Call& call) -> absl::Status {
        const auto convert = [this, conversion = FromProto(*request)](registry::OperationScope& scope) {
          auto made = Convert(conversion, scope);
          return made.ok() ? made : base::About(made.status(), conversion.model);
        };
        const auto check = [&]() -> absl::Status {
          NIBBLE_RETURN_IF_ERROR(CheckFields(*request));
          return library_.converter().Check(FromProto(*request), call.principal().tenant);
        };
        return Begin(
            operations_, StartOf(call, "convert", operations::OperationLane::kModels, *request, request->name()),
            [&] { return base::About(check(), request->model()); }, convert, response);
      });
}

grpc::ServerUnaryReactor* ModelService::ExportModel(grpc::CallbackServerContext* context,
                                                    const v1::ExportModelRequest* request,
                                                    google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/ExportModel", [=, this](const Call& call) -> absl::Status {
        return Begin(
            operations_, StartOf(call, "export", operations::OperationLane::kModels, *request, request->model()),
            [&]() -> absl::Status {
              NIBBLE_RETURN_IF_ERROR(CheckFields(*request));
              return library_.exporter().Check(FromProto(*request));
            },
            [this, copy = FromProto(*request)](
                registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
              NIBBLE_ASSIGN_OR_RETURN(const auto exported, library_.exporter().Export(copy, scope));
              return ModelAnswers::Exported(*exported);
            },
            response);
      });
}

grpc::ServerWriteReactor<v1::DownloadArtifactResponse>* ModelService::DownloadArtifact(
    grpc::CallbackServerContext* context, const v1::DownloadArtifactRequest* request) {
  auto stream = StreamReactor<v1::DownloadArtifactResponse>::Make(
      environment_, context, "nibble.v1.ModelService/DownloadArtifact", &environment_.downloads);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment_.workers, *stream, [this, stream, copy = *request] { SendArtifact(stream, library_, copy); });
  return stream.get();
}

grpc::ServerUnaryReactor* ModelService::LoadModel(grpc::CallbackServerContext* context,
                                                  const v1::LoadModelRequest* request,
                                                  google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/LoadModel", [=, this](const Call& call) -> absl::Status {
        const operations::OperationStart start =
            StartOf(call, "load", operations::OperationLane::kLoads, *request, request->name());
        NIBBLE_ASSIGN_OR_RETURN(std::optional<operations::Operation> known, operations_.Find(start));
        if (!known.has_value()) {
          NIBBLE_RETURN_IF_ERROR(CheckModelName("LoadModelRequest.name", request->name()));
          NIBBLE_RETURN_IF_ERROR(CheckDevice(request->device()));
          NIBBLE_RETURN_IF_ERROR(library_.Find(request->name()).status());
          const auto load = [this, name = request->name(), principal = auth::FairnessKey(call.principal())](
                                registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
            scope.Progress("load", 0, 1);
            NIBBLE_RETURN_IF_ERROR(loads_.Await(name, principal, scope.stopped()).status());
            return answers_.Loaded(name);
          };
          std::optional<operations::OperationResponse> response_now;  // set: the operation is done at once
          if (loads_.Find(request->name()) != nullptr) {
            NIBBLE_ASSIGN_OR_RETURN(response_now, answers_.Loaded(request->name()));
          }
          NIBBLE_ASSIGN_OR_RETURN(known, operations_.Start(start, load, std::move(response_now)));
        }
        *response = ToProto(*known);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ModelService::UnloadModel(grpc::CallbackServerContext* context,
                                                    const v1::UnloadModelRequest* request,
                                                    v1::UnloadModelResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/UnloadModel", [=, this](const Call&) -> absl::Status {
        NIBBLE_RETURN_IF_ERROR(library_.models().Get(request->name()).status());
        NIBBLE_RETURN_IF_ERROR(manager_.Unload(request->name()));
        NIBBLE_ASSIGN_OR_RETURN(*response->mutable_model(), answers_.Describe(request->name(), /*detailed=*/false));
        *response->mutable_residents() = answers_.Residents();
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* ModelService::PublishCheckpoint(grpc::CallbackServerContext* context,
                                                          const v1::PublishCheckpointRequest* request,
                                                          google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/PublishCheckpoint", [=, this](const Call& call) -> absl::Status {
        const std::string& tenant = call.principal().tenant;
        return Begin(
            operations_, StartOf(call, "publish", operations::OperationLane::kReaders, *request, request->name()),
            [&] { return library_.publisher().Check(FromProto(*request), tenant); },
            [this, copy = FromProto(*request),
             tenant](registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
              NIBBLE_RETURN_IF_ERROR(library_.publisher().Publish(copy, tenant, scope));
              return answers_.Made(copy.name);
            },
            response);
      });
}

grpc::ServerUnaryReactor* ModelService::VerifyModel(grpc::CallbackServerContext* context,
                                                    const v1::VerifyModelRequest* request,
                                                    google::longrunning::Operation* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.ModelService/VerifyModel", [=, this](const Call& call) -> absl::Status {
        const auto verify = [this, name = request->name()](
                                registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
          const auto verified = library_.verifier().Verify(name, scope);
          if (!verified.ok()) return base::About(verified.status(), name);
          return ModelAnswers::Verified(*verified);
        };
        return Begin(
            operations_, StartOf(call, "verify", operations::OperationLane::kReaders, *request, request->name()),
            [&] { return library_.Find(request->name()).status(); }, verify, response);
      });
}

}  // namespace nibble::rpc
