// The C++ client of nibbled: one object per server. Every method blocks; long ones report progress through a callback.
#pragma once
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/files_to_send.h"
#include "client/security.h"
#include "client/status.h"
#include "google/longrunning/operations.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "nibble/v1/dataset_service.grpc.pb.h"
#include "nibble/v1/fine_tune_service.grpc.pb.h"
#include "nibble/v1/inference_service.grpc.pb.h"
#include "nibble/v1/model_service.grpc.pb.h"
#include "nibble/v1/server_service.grpc.pb.h"
#include "nibble/v1/upload_service.grpc.pb.h"

namespace nibble::client {

struct ClientOptions {
  Security security;
  // Deadline of a call that answers at once, such as one that starts an operation (a load, a plan, an import).
  absl::Duration deadline = absl::Seconds(60);
  // Deadline of waiting for an operation, of streams and of LongCall; infinite unless the user sets one.
  absl::Duration long_deadline = absl::InfiniteDuration();
  // Maximum attempts of a call; only UNAVAILABLE is retried. For an upload: maximum consecutive attempts without
  // progress, after any error of CanResume (upload.cc). The client waits as long as the server's RetryInfo says, but at
  // most longest_wait. Without RetryInfo the wait doubles each time.
  int attempts = 4;
  absl::Duration first_wait = absl::Milliseconds(200);
  absl::Duration longest_wait = absl::Seconds(5);
  // A watch that lost its connection gives up after this long; a watch that never connected gives up after `attempts`.
  absl::Duration reconnect_for = absl::Minutes(2);
  // Called once each time that a watch loses its connection and starts to retry.
  std::function<void(const absl::Status& why)> on_lost = {};
};

bool IsFinal(v1::JobState state);  // SUCCEEDED, FAILED, CANCELLED

// `done` and `total` count the bytes of an upload or download, or the units of an operation.
using OnProgress = std::function<void(const std::string& stage, std::int64_t done, std::int64_t total)>;

// Thread-compatible.
class Client {
 public:
  // Connects at the first call, not here. `server` is HOST:PORT.
  static Client Connect(const std::string& server, const ClientOptions& options);
  Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options);

  // One unary call under options.deadline: client.Call(&v1::ModelService::Stub::GetModel, request).
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    return CallFor(options_.deadline, method, request);
  }
  // One unary call under options.long_deadline, for calls that may take long (generate, chat, preview).
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> LongCall(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                    const Request& request) {
    return CallFor(options_.long_deadline, method, request);
  }

  // Streams the file with its SHA-256. header.name is required; the method fills in the size, and upload_id if it is
  // empty. Resumes a stream that is lost, or that the server ends because of its age. A header with any resume_offset
  // resumes an upload that another client began.
  absl::StatusOr<v1::Dataset> UploadDataset(const std::string& path, v1::UploadDatasetHeader header,
                                            const OnProgress& progress);
  // Writes a dataset's rows to the file, which appears complete or not at all. Returns its size.
  absl::StatusOr<std::int64_t> DownloadDataset(const std::string& name, const std::string& path,
                                               const OnProgress& progress);
  // Streams the files of a model (client/files_to_send.h), as UploadDataset does. ImportModelRequest takes the
  // upload_id of the response.
  absl::StatusOr<v1::UploadModelResponse> UploadModel(v1::UploadModelHeader header,
                                                      const std::vector<FileToSend>& files, const OnProgress& progress);
  // Writes the files of an export under `directory`, which it creates; each file appears complete or not at all. Checks
  // paths, sizes and digests (DataLoss). Returns the files with their digests.
  absl::StatusOr<std::vector<v1::FileEntry>> DownloadArtifact(const std::string& artifact_id,
                                                              const std::string& directory, const OnProgress& progress);

  // Waits for the end of an operation and unpacks its response. An error of the operation becomes the status.
  template <typename Response>
  absl::StatusOr<Response> Wait(const google::longrunning::Operation& operation, const OnProgress& progress) {
    Response response;
    absl::Status status = WaitInto(operation, progress, response);
    if (!status.ok()) return status;
    return response;
  }

  // Like Wait, for any kind of operation; `operation` holds its final state afterwards.
  absl::Status WaitForEnd(google::longrunning::Operation& operation, const OnProgress& progress);

  // Passes on every event of the job with a sequence above `after_sequence`, once and in order, and reconnects for at
  // most reconnect_for. If a stream leaves out events, reads them from the log. Drops the Snapshot that opens each
  // stream. Returns the final state of the job, or the error of `on_event`, which ends the watch.
  absl::StatusOr<v1::Job> WatchJob(const std::string& name, std::int64_t after_sequence,
                                   const std::function<absl::Status(const v1::JobEvent&)>& on_event);

  // Passes on the parts of the log of a job's trainer, each byte once and in order, and reconnects as WatchJob does,
  // at the byte after the last one. Drops the chunks without data. Returns OK when the log ends (for `follow`: when the
  // job is final or PAUSED), or the error of `on_chunk`, which ends the watch.
  absl::Status WatchJobLogs(const v1::WatchJobLogsRequest& request,
                            const std::function<absl::Status(const v1::JobLogChunk&)>& on_chunk);

  // Passes on every message of a stream. DataLoss when a message is out of order: the start is first, the usage last,
  // and no delta follows its output's finish. An error of `on_reply` cancels the call; the method then returns it.
  absl::Status GenerateStream(const v1::GenerateRequest& request, bool chat,
                              const std::function<absl::Status(const v1::GenerateReply&)>& on_reply);
  // Joins the pieces of ScoreStream. DataLoss when they are out of order or the stream has no finish.
  absl::StatusOr<v1::ScoreResponse> ScoreStream(const v1::ScoreRequest& request);

 private:
  struct Stubs;

  template <typename Stub>
  Stub& StubFor();

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> CallFor(absl::Duration deadline,
                                   grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                   const Request& request) {
    Response response;
    absl::Status status = Retry([&] {
      grpc::ClientContext context;
      SetDeadline(context, deadline);
      response.Clear();
      return FromGrpc((StubFor<Stub>().*method)(&context, request, &response));
    });
    if (!status.ok()) return status;
    return response;
  }

  // Repeats `call` until it returns something other than UNAVAILABLE, or the attempts are used up.
  absl::Status Retry(const std::function<absl::Status()>& call);
  // Calls `stream` with the server's state of the upload, and again after each error that a new stream can resume,
  // until the upload is complete or fails for good. `resumed`: the server already has the upload.
  absl::Status RetryUpload(const std::string& id, bool resumed,
                           const std::function<absl::Status(const v1::Upload& arrived)>& stream);
  absl::Status WaitInto(google::longrunning::Operation operation, const OnProgress& progress,
                        google::protobuf::Message& response);
  static void SetDeadline(grpc::ClientContext& context, absl::Duration deadline);

  ClientOptions options_;
  std::shared_ptr<Stubs> stubs_;
};

template <>
v1::DatasetService::Stub& Client::StubFor();
template <>
v1::FineTuneService::Stub& Client::StubFor();
template <>
v1::ModelService::Stub& Client::StubFor();
template <>
v1::InferenceService::Stub& Client::StubFor();
template <>
v1::ServerService::Stub& Client::StubFor();
template <>
v1::UploadService::Stub& Client::StubFor();
template <>
google::longrunning::Operations::Stub& Client::StubFor();
template <>
grpc::health::v1::Health::Stub& Client::StubFor();

}  // namespace nibble::client
