#include "server/rpc/model_service.h"

#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/model_name.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/model_transfer.h"
#include "server/rpc/page.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

namespace {

// The request without its id: what a repeated id is compared by.
template <typename Request>
std::string DigestOf(Request request) {
  request.clear_request_id();
  return base::Sha256Hex(base::StrCat(request.GetTypeName(), request.SerializeAsString()));
}

template <typename Request>
OperationStart StartOf(const Call& call, const Request& request, const std::string& model) {
  return {.model = model, .owner = OwnerOf(call.principal()), .request_id = request.request_id(), .digest = DigestOf(request)};
}

// Answers the operation that this request began before, although its name is taken by now; else checks the request and begins it.
template <typename Check>
absl::Status Begin(OperationTable& operations, const OperationStart& start, Check check, OperationTable::Body body,
                   google::longrunning::Operation* response) {
  NIBBLE_ASSIGN_OR_RETURN(std::optional<google::longrunning::Operation> known, operations.Find(start));
  if (!known.has_value()) {
    NIBBLE_RETURN_IF_ERROR(check());
    NIBBLE_ASSIGN_OR_RETURN(known, operations.Start(start, std::move(body)));
  }
  *response = *std::move(known);
  return absl::OkStatus();
}

v1::Model Damaged(const store::StoredModel& stored) {
  v1::Model model;
  model.set_name(stored.name);
  model.set_damaged(true);
  return model;
}

}  // namespace

grpc::ServerReadReactor<v1::UploadModelRequest>* ModelService::UploadModel(grpc::CallbackServerContext* context,
                                                                           v1::UploadModelResponse* response) {
  return UploadReactor<v1::UploadModelRequest>::Make(edge_, context, "nibble.v1.ModelService/UploadModel",
                                                     MakeModelUpload(edge_, library_, response));
}

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest* request, v1::ListModelsResponse* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/ListModels", [=, this](const Call&) -> absl::Status {
    const auto all = library_.models().List();
    const auto name_of = [](const store::StoredModel& one) { return one.name; };
    const auto row_of = [&](const store::StoredModel& one) -> absl::StatusOr<std::optional<v1::Model>> {
      if (one.damaged) return Damaged(one);
      absl::StatusOr<v1::Model> model = ToProto(one, library_.manager().IsLoaded(one.name), false);
      // Deleted since the names were listed: the others are there.
      if (!model.ok() && absl::IsNotFound(library_.models().Get(one.name).status())) return std::nullopt;
      if (store::SaysDamaged(model.status())) return Damaged(one);
      return model;
    };
    NIBBLE_ASSIGN_OR_RETURN(*response->mutable_next_page_token(),
                            FillPage(all, name_of, request->page_size(), request->page_token(), edge_.max_page_bytes, row_of,
                                     *response->mutable_models()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                                 v1::Model* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/GetModel", [=, this](const Call&) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(*response, library_.Describe(request->name(), /*detailed=*/true));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::DeleteModel(grpc::CallbackServerContext* context,
                                                    const v1::DeleteModelRequest* request, v1::DeleteModelResponse*) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/DeleteModel", [=, this](const Call& call) -> absl::Status {
    const auto etag = request->has_etag() ? std::optional(request->etag()) : std::nullopt;
    return library_.models().Delete(request->name(), etag, call.principal().tenant);
  });
}

grpc::ServerUnaryReactor* ModelService::ImportModel(grpc::CallbackServerContext* context,
                                                    const v1::ImportModelRequest* request,
                                                    google::longrunning::Operation* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/ImportModel", [=, this](const Call& call) -> absl::Status {
    const OperationStart start = StartOf(call, *request, request->name());
    return Begin(operations_, start, [&] { return library_.CheckImport(*request, start.owner); },
                 [this, copy = *request, owner = start.owner](OperationScope& scope) { return library_.Import(copy, owner, scope); }, response);
  });
}

grpc::ServerUnaryReactor* ModelService::ConvertModel(grpc::CallbackServerContext* context,
                                                     const v1::ConvertModelRequest* request,
                                                     google::longrunning::Operation* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/ConvertModel", [=, this](const Call& call) -> absl::Status {
    const auto convert = [this, copy = *request](OperationScope& scope) {
      auto made = library_.Convert(copy, scope);
      return made.ok() ? made : base::About(made.status(), copy.model());
    };
    return Begin(operations_, StartOf(call, *request, request->name()),
                 [&] { return base::About(library_.CheckConvert(*request), request->model()); }, convert, response);
  });
}

grpc::ServerUnaryReactor* ModelService::ExportModel(grpc::CallbackServerContext* context,
                                                    const v1::ExportModelRequest* request,
                                                    google::longrunning::Operation* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/ExportModel", [=, this](const Call& call) -> absl::Status {
    return Begin(operations_, StartOf(call, *request, request->model()), [&] { return library_.CheckExport(*request); },
                 [this, copy = *request](OperationScope& scope) { return library_.Export(copy, scope); }, response);
  });
}

grpc::ServerWriteReactor<v1::DownloadArtifactResponse>* ModelService::DownloadArtifact(
    grpc::CallbackServerContext* context, const v1::DownloadArtifactRequest* request) {
  auto stream =
      StreamReactor<v1::DownloadArtifactResponse>::Make(edge_, context, "nibble.v1.ModelService/DownloadArtifact", &edge_.downloads);
  if (stream->ended()) return stream.get();
  const bool taken = edge_.workers.TryRun([this, stream, copy = *request] { SendArtifact(stream, library_, copy); });
  if (!taken) stream->End(TooManyWait(edge_.workers));
  return stream.get();
}

grpc::ServerUnaryReactor* ModelService::LoadModel(grpc::CallbackServerContext* context, const v1::LoadModelRequest* request,
                                                  v1::LoadModelResponse* response) {
  const auto check = [request]() -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(CheckModelName("LoadModelRequest.name", request->name()));
    return CheckDevice(request->device());
  };
  const auto answer = [=, this](const ModelLoads::Loaded& loaded) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(loaded.status());
    NIBBLE_ASSIGN_OR_RETURN(*response->mutable_model(), library_.Describe(request->name(), false));
    *response->mutable_residents() = ToProto(library_.manager());
    return absl::OkStatus();
  };
  const auto start = [=, this](UnaryCall* call) {
    if (const absl::Status good = check(); !good.ok()) return call->Done(good);
    WithModel(loads_, request->name(), call, call->call().deadline(),
              [call, answer](const ModelLoads::Loaded& loaded) { call->Done(answer(loaded)); });
  };
  return UnaryAsync(edge_, edge_.workers, context, "nibble.v1.ModelService/LoadModel", start);
}

grpc::ServerUnaryReactor* ModelService::UnloadModel(grpc::CallbackServerContext* context,
                                                    const v1::UnloadModelRequest* request,
                                                    v1::UnloadModelResponse* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.ModelService/UnloadModel", [=, this](const Call&) -> absl::Status {
    NIBBLE_RETURN_IF_ERROR(library_.models().Get(request->name()).status());
    NIBBLE_RETURN_IF_ERROR(library_.manager().Unload(request->name()));
    NIBBLE_ASSIGN_OR_RETURN(*response->mutable_model(), library_.Describe(request->name(), false));
    *response->mutable_residents() = ToProto(library_.manager());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::PublishCheckpoint(grpc::CallbackServerContext* context,
                                                          const v1::PublishCheckpointRequest* request,
                                                          v1::Model* response) {
  return UnaryOnSlowWorker(edge_, readers_, context, "nibble.v1.ModelService/PublishCheckpoint",
                           [=, this](const Call& call) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(*response, library_.PublishCheckpoint(*request, call.principal().tenant, call.stopped()));
    *response->mutable_residents() = ToProto(library_.manager());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::VerifyModel(grpc::CallbackServerContext* context,
                                                    const v1::VerifyModelRequest* request,
                                                    v1::VerifyModelResponse* response) {
  return UnaryOnSlowWorker(edge_, readers_, context, "nibble.v1.ModelService/VerifyModel",
                           [=, this](const Call& call) -> absl::Status {
    auto verified = library_.Verify(request->name(), call.stopped());
    if (!verified.ok()) return base::About(verified.status(), request->name());
    *response = *std::move(verified);
    return absl::OkStatus();
  });
}

}  // namespace nibble::rpc
