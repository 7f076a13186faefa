// An in-process gRPC server that returns the responses set by a test. If a test sets none, GetModel returns NOT_FOUND,
// and the other methods with a member below return UNIMPLEMENTED.
#pragma once
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "client/client.h"
#include "google/protobuf/text_format.h"
#include "server/base/mutex.h"

namespace nibble::client {

template <typename Message>
Message Proto(const std::string& text) {
  Message message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message)) ADD_FAILURE() << "not a text proto: " << text;
  return message;
}

// A finished operation with this response.
template <typename Response>
google::longrunning::Operation Done(const std::string& text) {
  google::longrunning::Operation operation;
  operation.set_name("operations/1");
  operation.set_done(true);
  operation.mutable_response()->PackFrom(Proto<Response>(text));
  return operation;
}

// A status with ErrorInfo and, if `field` is set, BadRequest.
grpc::Status Error(grpc::StatusCode code, const std::string& message, const std::string& reason,
                   const std::string& field = "");

// One method: its response and the requests it received.
template <typename Request, typename Response>
struct Unary {
  std::function<grpc::Status(const Request&, Response*)> answer;
  std::vector<Request> asked;

  void Answers(const Response& response) {
    answer = [response](const Request&, Response* out) {
      *out = response;
      return grpc::Status::OK;
    };
  }
  void Fails(const grpc::Status& status) {
    answer = [status](const Request&, Response*) { return status; };
  }
};

template <typename Request, typename Response>
struct Streaming {
  std::function<grpc::Status(const Request&, const std::function<bool(const Response&)>& write)> answer;
  std::vector<Request> asked;

  void Answers(const std::vector<Response>& replies) {
    answer = [replies](const Request&, const std::function<bool(const Response&)>& write) {
      for (const Response& reply : replies) write(reply);
      return grpc::Status::OK;
    };
  }
};

// One upload as it arrived.
struct Upload {
  std::string name;
  std::string id;
  std::int64_t offset = 0;  // where its stream resumed
  std::vector<v1::FileEntry> files;
  std::string bytes;
  std::size_t largest_chunk = 0;
  std::string sha256;
  std::int64_t announced_bytes = -1;
};

class FakeServer {
 public:
  FakeServer();
  ~FakeServer();

  // Restarts the server. Empty `address`: in this process only; else also on that socket, to test lost connections.
  void Listen(const std::string& address);
  void Stop();
  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }

  base::Mutex mutex;  // guards what the members below record
  Unary<v1::GetDatasetRequest, v1::Dataset> get_dataset;
  Unary<v1::ListDatasetsRequest, v1::ListDatasetsResponse> list_datasets;
  Unary<v1::DeleteDatasetRequest, v1::DeleteDatasetResponse> delete_dataset;
  Unary<v1::PreviewDatasetRequest, v1::PreviewDatasetResponse> preview_dataset;
  Streaming<v1::DownloadDatasetRequest, v1::DownloadDatasetResponse> download_dataset;
  Unary<v1::PlanJobRequest, google::longrunning::Operation> plan_job;
  Unary<v1::CreateJobRequest, v1::Job> create_job;
  Unary<v1::GetJobRequest, v1::Job> get_job;
  Unary<v1::ListJobsRequest, v1::ListJobsResponse> list_jobs;
  Unary<v1::CancelJobRequest, v1::Job> cancel_job;
  Unary<v1::DeleteJobRequest, v1::DeleteJobResponse> delete_job;
  Unary<v1::ListJobEventsRequest, v1::ListJobEventsResponse> list_job_events;
  Unary<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse> list_checkpoints;
  Streaming<v1::WatchJobRequest, v1::JobEvent> watch_job;
  Streaming<v1::WatchJobLogsRequest, v1::JobLogChunk> watch_job_logs;
  Unary<v1::GetModelRequest, v1::Model> get_model;
  Unary<v1::ListModelsRequest, v1::ListModelsResponse> list_models;
  Unary<v1::DeleteModelRequest, v1::DeleteModelResponse> delete_model;
  Unary<v1::ImportModelRequest, google::longrunning::Operation> import_model;
  Unary<v1::ConvertModelRequest, google::longrunning::Operation> convert_model;
  Unary<v1::ExportModelRequest, google::longrunning::Operation> export_model;
  Unary<v1::LoadModelRequest, google::longrunning::Operation> load_model;
  Unary<v1::UnloadModelRequest, v1::UnloadModelResponse> unload_model;
  Unary<v1::VerifyModelRequest, google::longrunning::Operation> verify_model;
  Unary<v1::PublishCheckpointRequest, google::longrunning::Operation> publish_checkpoint;
  Streaming<v1::DownloadArtifactRequest, v1::DownloadArtifactResponse> download_artifact;
  Unary<v1::GenerateRequest, v1::GenerateResponse> generate;
  Unary<v1::ChatRequest, v1::GenerateResponse> chat;
  Streaming<v1::GenerateStreamRequest, v1::GenerateReply> generate_stream;
  Streaming<v1::ChatStreamRequest, v1::GenerateReply> chat_stream;
  Streaming<v1::ScoreStreamRequest, v1::ScoreReply> score;
  Unary<v1::TokenizeRequest, v1::TokenizeResponse> tokenize;
  Unary<v1::GetServerInfoRequest, v1::ServerInfo> server_info;
  Unary<v1::GetLoadRequest, v1::ServerLoad> server_load;
  Unary<google::longrunning::WaitOperationRequest, google::longrunning::Operation> wait_operation;
  Unary<google::longrunning::GetOperationRequest, google::longrunning::Operation> get_operation;
  Unary<v1::GetUploadRequest, v1::Upload> get_upload;
  Unary<v1::ListUploadsRequest, v1::ListUploadsResponse> list_uploads;
  Unary<v1::CancelUploadRequest, v1::CancelUploadResponse> cancel_upload;
  // One entry per stream: the next stream is lost after this many chunk bytes. `lost` has what the lost streams sent.
  std::vector<std::size_t> lose_after;
  std::vector<Upload> lost;
  // Called for each upload with a valid message order; returns the status of the upload.
  std::function<grpc::Status(const Upload&)> on_upload;
  std::vector<Upload> uploads;

 private:
  struct Services;
  std::unique_ptr<Services> services_;
  std::unique_ptr<grpc::Server> server_;
};

// Options with short waits.
ClientOptions FastOptions();

struct Result {
  int exit = -1;
  std::string out;
  std::string err;
};

// Runs the command-line program against the server.
Result RunNibble(FakeServer& server, std::vector<std::string> arguments, const std::string& input = "",
                 cli::InterruptNote* interrupt = nullptr);
// The same with a terminal as its output.
Result RunNibbleInTerminal(FakeServer& server, std::vector<std::string> arguments);

// A new, empty folder, which exists until the test program ends.
std::string TemporaryFolder();
// Writes a file in a new TemporaryFolder. Returns the path.
std::string WriteFile(const std::string& name, const std::string& content);

// The messages of a stream: start, the deltas, finish, usage.
std::vector<v1::GenerateReply> Replies(const std::vector<std::string>& deltas);

}  // namespace nibble::client
