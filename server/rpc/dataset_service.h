#pragma once
#include <string>
#include <utility>

#include "nibble/v1/dataset_service.grpc.pb.h"
#include "server/base/worker_pool.h"
#include "server/data/large_rows.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/rpc/call.h"
#include "server/store/state_directory.h"

namespace nibble::rpc {

// Thread-safe.
class DatasetService : public v1::DatasetService::CallbackService {
 public:
  // import_root: directory on this machine that uploads may name files in; "": none.
  DatasetService(CallEnvironment& environment, store::StateDirectory& state, registry::TextCache& texts,
                 registry::UploadTable& uploads, data::LargeRows& large_rows, std::string import_root)
      : environment_(environment),
        state_(state),
        texts_(texts),
        uploads_(uploads),
        large_rows_(large_rows),
        import_root_(std::move(import_root)) {}

  grpc::ServerReadReactor<v1::UploadDatasetRequest>* UploadDataset(grpc::CallbackServerContext*, v1::Dataset*) override;
  grpc::ServerUnaryReactor* GetDataset(grpc::CallbackServerContext*, const v1::GetDatasetRequest*,
                                       v1::Dataset*) override;
  grpc::ServerUnaryReactor* ListDatasets(grpc::CallbackServerContext*, const v1::ListDatasetsRequest*,
                                         v1::ListDatasetsResponse*) override;
  grpc::ServerUnaryReactor* DeleteDataset(grpc::CallbackServerContext*, const v1::DeleteDatasetRequest*,
                                          v1::DeleteDatasetResponse*) override;
  grpc::ServerUnaryReactor* PreviewDataset(grpc::CallbackServerContext*, const v1::PreviewDatasetRequest*,
                                           v1::PreviewDatasetResponse*) override;
  grpc::ServerWriteReactor<v1::DownloadDatasetResponse>* DownloadDataset(grpc::CallbackServerContext*,
                                                                         const v1::DownloadDatasetRequest*) override;

 private:
  CallEnvironment& environment_;
  store::StateDirectory& state_;
  registry::TextCache& texts_;
  registry::UploadTable& uploads_;
  data::LargeRows& large_rows_;
  const std::string import_root_;
  // Previews tokenize many rows to show a few. Own workers keep them from delaying other calls.
  base::WorkerPool previewers_{/*num_threads=*/2, /*max_waiting=*/64};
};

}  // namespace nibble::rpc
