// The C++ client of nibbled: one object a server. Every method blocks; what takes long reports by callback.
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
  // Of a call that answers at once, such as one that begins an operation (a load, a plan, an import).
  absl::Duration deadline = absl::Seconds(60);
  // Of the wait for an operation, of streams and of LongCall; infinite unless the user asks.
  absl::Duration long_deadline = absl::InfiniteDuration();
  // A call that ends UNAVAILABLE, and no other, is tried this often in all, with doubling waits.
  int attempts = 4;
  absl::Duration first_wait = absl::Milliseconds(200);
  absl::Duration longest_wait = absl::Seconds(5);
  // A watch that has lost the server gives up after this long; one that never reached it, after `attempts`.
  absl::Duration reconnect_for = absl::Minutes(2);
  // Told once each time that a watch loses its connection and goes on trying.
  std::function<void(const absl::Status& why)> on_lost = {};
};

bool IsFinal(v1::JobState state);  // SUCCEEDED, FAILED, CANCELLED

// Bytes of an upload or download, or units of an operation's own.
using OnProgress = std::function<void(const std::string& stage, std::int64_t done, std::int64_t total)>;

// Thread-compatible.
class Client {
 public:
  // No connection is made before the first call. `server` is HOST:PORT.
  static Client Connect(const std::string& server, const ClientOptions& options);
  Client(const std::shared_ptr<grpc::Channel>& channel, const ClientOptions& options);

  // One unary call: client.Call(&v1::ModelService::Stub::GetModel, request). `deadline` default: options.deadline.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request) {
    return CallFor(options_.deadline, method, request);
  }
  // One that may take long (generate, chat, preview).
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> LongCall(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                    const Request& request) {
    return CallFor(options_.long_deadline, method, request);
  }

  // Streams the file with its SHA-256. header.name is required; size and, where it has none, upload_id are filled here. A stream that is
  // lost, or that the server ends for its age, is resumed. A header with any resume_offset resumes what another client began.
  absl::StatusOr<v1::Dataset> UploadDataset(const std::string& path, v1::UploadDatasetHeader header,
                                            const OnProgress& progress);
  // Streams the files (client/files_to_send.h) of a model, as UploadDataset does; the id is for ImportModelRequest.
  absl::StatusOr<v1::UploadModelResponse> UploadModel(v1::UploadModelHeader header, const std::vector<FileToSend>& files,
                                                      const OnProgress& progress);
  // Writes the files of an export under `directory`, which is made; each appears whole or not at all. Paths, sizes and
  // digests are checked: DataLoss, InvalidArgument. Returns the files, with digests.
  absl::StatusOr<std::vector<v1::FileEntry>> DownloadArtifact(const std::string& artifact_id,
                                                              const std::string& directory, const OnProgress& progress);

  // Waits for the end of an operation and unpacks its response. The operation's own error comes back as the status.
  template <typename Response>
  absl::StatusOr<Response> Wait(const google::longrunning::Operation& operation, const OnProgress& progress) {
    Response response;
    absl::Status status = WaitInto(operation, progress, response);
    if (!status.ok()) return status;
    return response;
  }

  // As Wait for an operation of any kind, which is at its end afterwards.
  absl::Status WaitForEnd(google::longrunning::Operation& operation, const OnProgress& progress);

  // Every event of the job with a sequence above `after_sequence`, once and in order, over as many connections as that
  // takes; gaps that a slow reader got are filled from the log. The Snapshot that opens each stream is not passed on.
  // Ends with the job as it is at the end; when `on_event` says so, with its status.
  absl::StatusOr<v1::Job> WatchJob(const std::string& name, std::int64_t after_sequence,
                                   const std::function<absl::Status(const v1::JobEvent&)>& on_event);

  // Passes on every message of a stream that keeps the order start, deltas, finishes, usage; DataLoss otherwise. An
  // error of `on_reply` cancels the call and is returned.
  absl::Status GenerateStream(const v1::GenerateRequest& request, bool chat,
                              const std::function<absl::Status(const v1::GenerateReply&)>& on_reply);
  // The pieces of ScoreStream joined; DataLoss where they are not in order or the stream has no finish.
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

  // Calls until it is not UNAVAILABLE any more or the attempts are used.
  absl::Status Retry(const std::function<absl::Status()>& call);
  // One stream after the other, each told what has arrived, until the upload is whole or fails for good. `resumed`: it is there already.
  absl::Status RetryUpload(const std::string& id, bool resumed, const std::function<absl::Status(const v1::Upload& arrived)>& stream);
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
