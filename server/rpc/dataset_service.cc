#include "server/rpc/dataset_service.h"

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/page.h"
#include "server/rpc/unary.h"

namespace nibble::rpc {

grpc::ServerReadReactor<v1::UploadDatasetRequest>* DatasetService::UploadDataset(grpc::CallbackServerContext* context,
                                                                                 v1::Dataset* response) {
  return UploadReactor<v1::UploadDatasetRequest>::Make(edge_, context, "nibble.v1.DatasetService/UploadDataset",
                                                       MakeDatasetUpload(edge_, *state_.datasets, import_root_, response));
}

grpc::ServerUnaryReactor* DatasetService::GetDataset(grpc::CallbackServerContext* context,
                                                     const v1::GetDatasetRequest* request, v1::Dataset* response) {
  return Unary(edge_, context, "nibble.v1.DatasetService/GetDataset", [&]() -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(request->name()));
    NIBBLE_ASSIGN_OR_RETURN(*response, ToProto(stored));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DatasetService::ListDatasets(grpc::CallbackServerContext* context,
                                                       const v1::ListDatasetsRequest* request,
                                                       v1::ListDatasetsResponse* response) {
  return Unary(edge_, context, "nibble.v1.DatasetService/ListDatasets", [&]() -> absl::Status {
    const auto all = state_.datasets->List();
    const auto name_of = [](const store::StoredDataset& one) { return one.name; };
    NIBBLE_ASSIGN_OR_RETURN(const Page page, PageOf(all, name_of, request->page_size(), request->page_token()));
    for (std::size_t i = page.begin; i < page.end; ++i) {
      NIBBLE_ASSIGN_OR_RETURN(*response->add_datasets(), ToProto(all[i]));
    }
    response->set_next_page_token(page.next_token);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* DatasetService::DeleteDataset(grpc::CallbackServerContext* context,
                                                        const v1::DeleteDatasetRequest* request,
                                                        v1::DeleteDatasetResponse*) {
  return UnaryOnWorker(edge_, context, "nibble.v1.DatasetService/DeleteDataset", [=, this](const Call&) -> absl::Status {
    if (request->has_etag()) {
      NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(request->name()));
      NIBBLE_ASSIGN_OR_RETURN(const v1::Dataset dataset, ToProto(stored));
      if (dataset.etag() != request->etag()) {
        return base::WithReason(absl::AbortedError(base::StrCat("etag: the dataset's is ", dataset.etag())), "ETAG_MISMATCH");
      }
    }
    return state_.datasets->Delete(request->name());
  });
}

grpc::ServerUnaryReactor* DatasetService::PreviewDataset(grpc::CallbackServerContext* context,
                                                         const v1::PreviewDatasetRequest* request,
                                                         v1::PreviewDatasetResponse* response) {
  return UnaryOnWorker(edge_, context, "nibble.v1.DatasetService/PreviewDataset", [=, this](const Call&) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const store::StoredDataset stored, state_.datasets->Get(request->dataset()));
    NIBBLE_ASSIGN_OR_RETURN(const auto model, texts_.Get(request->model()));
    return Preview(stored, *model, *request, response);
  });
}

}  // namespace nibble::rpc
