#include "server/rpc/dataset_service.h"

#include <optional>

#include "server/base/status_macros.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/page.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

grpc::ServerReadReactor<v1::UploadDatasetRequest>* DatasetService::UploadDataset(grpc::CallbackServerContext* context,
                                                                                 v1::Dataset* response) {
  return UploadReactor<v1::UploadDatasetRequest>::Make(
      environment_, context, "nibble.v1.DatasetService/UploadDataset",
      MakeDatasetUpload(environment_, *state_.datasets, uploads_, import_root_, response));
}

grpc::ServerUnaryReactor* DatasetService::GetDataset(grpc::CallbackServerContext* context,
                                                     const v1::GetDatasetRequest* request, v1::Dataset* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.DatasetService/GetDataset", [=, this](const Call&) -> absl::Status {
        NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(request->name()));
        NIBBLE_ASSIGN_OR_RETURN(*response, ToProto(stored));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* DatasetService::ListDatasets(grpc::CallbackServerContext* context,
                                                       const v1::ListDatasetsRequest* request,
                                                       v1::ListDatasetsResponse* response) {
  return UnaryOnWorker(
      environment_, context, "nibble.v1.DatasetService/ListDatasets", [=, this](const Call&) -> absl::Status {
        const auto all = state_.datasets->List();
        const auto name_of = [](const store::StoredDataset& one) { return one.name; };
        const auto row_of = [](const store::StoredDataset& one) -> absl::StatusOr<std::optional<v1::Dataset>> {
          if (!one.damaged) {
            absl::StatusOr<v1::Dataset> dataset = ToProto(one);
            if (!absl::IsDataLoss(dataset.status())) return dataset;
          }
          v1::Dataset damaged;
          damaged.set_name(one.name);
          damaged.set_damaged(true);
          return damaged;
        };
        NIBBLE_ASSIGN_OR_RETURN(*response->mutable_next_page_token(),
                                FillPage(all, name_of, request->page_size(), request->page_token(),
                                         environment_.max_page_bytes, row_of, *response->mutable_datasets()));
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* DatasetService::DeleteDataset(grpc::CallbackServerContext* context,
                                                        const v1::DeleteDatasetRequest* request,
                                                        v1::DeleteDatasetResponse*) {
  return UnaryOnWorker(environment_, context, "nibble.v1.DatasetService/DeleteDataset",
                       [=, this](const Call& call) -> absl::Status {
                         const auto etag = request->has_etag() ? std::optional(request->etag()) : std::nullopt;
                         return state_.datasets->Delete(request->name(), etag, call.principal().tenant);
                       });
}

grpc::ServerUnaryReactor* DatasetService::PreviewDataset(grpc::CallbackServerContext* context,
                                                         const v1::PreviewDatasetRequest* request,
                                                         v1::PreviewDatasetResponse* response) {
  const auto body = [=, this](const Call& call) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(request->dataset()));
    NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
    plan::PreviewBounds bounds;
    bounds.cancelled = call.stopped();
    bounds.await_turn = [&] { return large_rows_.Await(bounds.cancelled); };
    return Preview(stored, *model, *request, bounds, environment_.max_send_bytes, response);
  };
  return UnaryOnSlowWorker(environment_, previewers_, context, "nibble.v1.DatasetService/PreviewDataset", body,
                           environment_.default_deadline);
}

grpc::ServerWriteReactor<v1::DownloadDatasetResponse>* DatasetService::DownloadDataset(
    grpc::CallbackServerContext* context, const v1::DownloadDatasetRequest* request) {
  auto stream = StreamReactor<v1::DownloadDatasetResponse>::Make(
      environment_, context, "nibble.v1.DatasetService/DownloadDataset", &environment_.downloads);
  if (stream->ended()) return stream.get();
  RunOnWorker(environment_.workers, *stream, [this, stream, name = request->name()] {
    const absl::StatusOr<store::StoredDataset> stored = state_.datasets->Get(name);
    if (!stored.ok()) return stream->End(stored.status());
    SendDataset(stream, *stored);
  });
  return stream.get();
}

}  // namespace nibble::rpc
