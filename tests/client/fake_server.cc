#include "tests/client/fake_server.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "google/rpc/error_details.pb.h"

namespace nibble::client {
namespace {

using google::longrunning::Operation;
using grpc::ServerContext;
using grpc::Status;

template <typename Request, typename Response>
Status Do(base::Mutex& mutex, Unary<Request, Response>& method, const Request& request, Response* response) {
  std::function<Status(const Request&, Response*)> answer;
  {
    base::MutexLock lock(mutex);
    method.asked.push_back(request);
    answer = method.answer;
  }
  return answer ? answer(request, response) : Status(grpc::StatusCode::UNIMPLEMENTED, "the test set no response");
}

template <typename Request, typename Response>
Status Do(base::Mutex& mutex, Streaming<Request, Response>& method, const Request& request,
          grpc::ServerWriter<Response>* writer) {
  std::function<Status(const Request&, const std::function<bool(const Response&)>&)> answer;
  {
    base::MutexLock lock(mutex);
    method.asked.push_back(request);
    answer = method.answer;
  }
  if (!answer) return Status(grpc::StatusCode::UNIMPLEMENTED, "the test set no response");
  return answer(request, [writer](const Response& message) { return writer->Write(message); });
}

Status BadOrder() {
  return Error(grpc::StatusCode::INVALID_ARGUMENT, "wrong order of messages", "FIELD_VIOLATION", "message");
}

}  // namespace

// NOLINTBEGIN(bugprone-macro-parentheses): types and names cannot be parenthesized
#define NIBBLE_FAKE_UNARY(Method, Request, Response, member)                           \
  Status Method(ServerContext*, const Request* request, Response* response) override { \
    return Do(fake.mutex, fake.member, *request, response);                            \
  }
#define NIBBLE_FAKE_STREAM(Method, Request, Response, member)                                            \
  Status Method(ServerContext*, const Request* request, grpc::ServerWriter<Response>* writer) override { \
    return Do(fake.mutex, fake.member, *request, writer);                                                \
  }
// NOLINTEND(bugprone-macro-parentheses)

struct FakeServer::Services {
  explicit Services(FakeServer& owner)
      : datasets{owner}, jobs{owner}, models{owner}, inference{owner}, info{owner}, uploads{owner}, operations{owner} {}

  struct Datasets final : v1::DatasetService::Service {
    explicit Datasets(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(GetDataset, v1::GetDatasetRequest, v1::Dataset, get_dataset)
    NIBBLE_FAKE_UNARY(ListDatasets, v1::ListDatasetsRequest, v1::ListDatasetsResponse, list_datasets)
    NIBBLE_FAKE_UNARY(DeleteDataset, v1::DeleteDatasetRequest, v1::DeleteDatasetResponse, delete_dataset)
    NIBBLE_FAKE_UNARY(PreviewDataset, v1::PreviewDatasetRequest, v1::PreviewDatasetResponse, preview_dataset)
    NIBBLE_FAKE_STREAM(DownloadDataset, v1::DownloadDatasetRequest, v1::DownloadDatasetResponse, download_dataset)
    Status UploadDataset(ServerContext*, grpc::ServerReader<v1::UploadDatasetRequest>* reader,
                         v1::Dataset* response) override {
      v1::UploadDatasetRequest message;
      if (!reader->Read(&message) || !message.has_header()) return BadOrder();
      Upload upload;
      upload.name = message.header().name();
      upload.id = message.header().upload_id();
      upload.offset = message.header().resume_offset();
      upload.announced_bytes = message.header().size_bytes();
      response->set_name(upload.name);
      response->set_format(message.header().has_format() ? message.header().format() : v1::DATASET_FORMAT_TEXT);
      while (reader->Read(&message)) {
        if (!upload.sha256.empty()) return BadOrder();
        if (message.message_case() == v1::UploadDatasetRequest::kChunk) {
          upload.bytes += message.chunk();
          upload.largest_chunk = std::max(upload.largest_chunk, message.chunk().size());
          if (Loses(fake, upload)) return {grpc::StatusCode::UNAVAILABLE, "lost"};
        } else {
          upload.sha256 = message.finish().sha256();
        }
      }
      response->set_bytes(static_cast<std::int64_t>(upload.bytes.size()));
      response->set_rows(std::count(upload.bytes.begin(), upload.bytes.end(), '\n'));
      response->set_sha256(upload.sha256);
      return Keep(fake, upload);
    }
    static bool Loses(FakeServer& fake, const Upload& upload) {
      base::MutexLock lock(fake.mutex);
      if (fake.lose_after.empty() || upload.bytes.size() < fake.lose_after.front()) return false;
      fake.lose_after.erase(fake.lose_after.begin());
      fake.lost.push_back(upload);
      return true;
    }
    static Status Keep(FakeServer& fake, const Upload& upload) {
      if (upload.sha256.empty()) return BadOrder();
      base::MutexLock lock(fake.mutex);
      fake.uploads.push_back(upload);
      return fake.on_upload ? fake.on_upload(upload) : Status::OK;
    }
  };

  struct Jobs final : v1::FineTuneService::Service {
    explicit Jobs(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(PlanJob, v1::PlanJobRequest, Operation, plan_job)
    NIBBLE_FAKE_UNARY(CreateJob, v1::CreateJobRequest, v1::Job, create_job)
    NIBBLE_FAKE_UNARY(GetJob, v1::GetJobRequest, v1::Job, get_job)
    NIBBLE_FAKE_UNARY(ListJobs, v1::ListJobsRequest, v1::ListJobsResponse, list_jobs)
    NIBBLE_FAKE_UNARY(CancelJob, v1::CancelJobRequest, v1::Job, cancel_job)
    NIBBLE_FAKE_UNARY(DeleteJob, v1::DeleteJobRequest, v1::DeleteJobResponse, delete_job)
    NIBBLE_FAKE_UNARY(ListJobEvents, v1::ListJobEventsRequest, v1::ListJobEventsResponse, list_job_events)
    NIBBLE_FAKE_UNARY(ListCheckpoints, v1::ListCheckpointsRequest, v1::ListCheckpointsResponse, list_checkpoints)
    NIBBLE_FAKE_STREAM(WatchJob, v1::WatchJobRequest, v1::JobEvent, watch_job)
    NIBBLE_FAKE_STREAM(WatchJobLogs, v1::WatchJobLogsRequest, v1::JobLogChunk, watch_job_logs)
  };

  struct Models final : v1::ModelService::Service {
    explicit Models(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(GetModel, v1::GetModelRequest, v1::Model, get_model)
    NIBBLE_FAKE_UNARY(ListModels, v1::ListModelsRequest, v1::ListModelsResponse, list_models)
    NIBBLE_FAKE_UNARY(DeleteModel, v1::DeleteModelRequest, v1::DeleteModelResponse, delete_model)
    NIBBLE_FAKE_UNARY(ImportModel, v1::ImportModelRequest, Operation, import_model)
    NIBBLE_FAKE_UNARY(ConvertModel, v1::ConvertModelRequest, Operation, convert_model)
    NIBBLE_FAKE_UNARY(ExportModel, v1::ExportModelRequest, Operation, export_model)
    NIBBLE_FAKE_UNARY(LoadModel, v1::LoadModelRequest, Operation, load_model)
    NIBBLE_FAKE_UNARY(UnloadModel, v1::UnloadModelRequest, v1::UnloadModelResponse, unload_model)
    NIBBLE_FAKE_UNARY(VerifyModel, v1::VerifyModelRequest, Operation, verify_model)
    NIBBLE_FAKE_UNARY(PublishCheckpoint, v1::PublishCheckpointRequest, Operation, publish_checkpoint)
    NIBBLE_FAKE_STREAM(DownloadArtifact, v1::DownloadArtifactRequest, v1::DownloadArtifactResponse, download_artifact)
    Status UploadModel(ServerContext*, grpc::ServerReader<v1::UploadModelRequest>* reader,
                       v1::UploadModelResponse* response) override {
      v1::UploadModelRequest message;
      if (!reader->Read(&message) || !message.has_header()) return BadOrder();
      Upload upload;
      upload.name = message.header().name();
      upload.id = message.header().upload_id();
      upload.offset = message.header().resume_offset();
      upload.announced_bytes = message.header().size_bytes();
      while (reader->Read(&message)) {
        if (!upload.sha256.empty()) return BadOrder();
        if (message.has_file()) {
          upload.files.push_back(message.file());
        } else if (message.message_case() == v1::UploadModelRequest::kChunk &&
                   (upload.offset > 0 || !upload.files.empty())) {
          upload.bytes += message.chunk();
          upload.largest_chunk = std::max(upload.largest_chunk, message.chunk().size());
          if (Datasets::Loses(fake, upload)) return {grpc::StatusCode::UNAVAILABLE, "lost"};
        } else if (message.has_finish()) {
          upload.sha256 = message.finish().sha256();
        } else {
          return BadOrder();
        }
      }
      response->set_upload_id("upload-1");
      return Datasets::Keep(fake, upload);
    }
  };

  struct Inference final : v1::InferenceService::Service {
    explicit Inference(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(Generate, v1::GenerateRequest, v1::GenerateResponse, generate)
    NIBBLE_FAKE_UNARY(Chat, v1::ChatRequest, v1::GenerateResponse, chat)
    NIBBLE_FAKE_STREAM(GenerateStream, v1::GenerateStreamRequest, v1::GenerateReply, generate_stream)
    NIBBLE_FAKE_STREAM(ChatStream, v1::ChatStreamRequest, v1::GenerateReply, chat_stream)
    NIBBLE_FAKE_STREAM(ScoreStream, v1::ScoreStreamRequest, v1::ScoreReply, score)
    NIBBLE_FAKE_UNARY(Tokenize, v1::TokenizeRequest, v1::TokenizeResponse, tokenize)
  };

  struct Info final : v1::ServerService::Service {
    explicit Info(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(GetServerInfo, v1::GetServerInfoRequest, v1::ServerInfo, server_info)
    NIBBLE_FAKE_UNARY(GetLoad, v1::GetLoadRequest, v1::ServerLoad, server_load)
  };

  struct Uploads final : v1::UploadService::Service {
    explicit Uploads(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(GetUpload, v1::GetUploadRequest, v1::Upload, get_upload)
    NIBBLE_FAKE_UNARY(ListUploads, v1::ListUploadsRequest, v1::ListUploadsResponse, list_uploads)
    NIBBLE_FAKE_UNARY(CancelUpload, v1::CancelUploadRequest, v1::CancelUploadResponse, cancel_upload)
  };

  struct Operations final : google::longrunning::Operations::Service {
    explicit Operations(FakeServer& owner) : fake(owner) {}
    FakeServer& fake;
    NIBBLE_FAKE_UNARY(WaitOperation, google::longrunning::WaitOperationRequest, Operation, wait_operation)
    NIBBLE_FAKE_UNARY(GetOperation, google::longrunning::GetOperationRequest, Operation, get_operation)
  };

  Datasets datasets;
  Jobs jobs;
  Models models;
  Inference inference;
  Info info;
  Uploads uploads;
  Operations operations;
};

FakeServer::FakeServer() : services_(std::make_unique<Services>(*this)) {
  get_model.Fails(Error(grpc::StatusCode::NOT_FOUND, "there is no such model", "MODEL"));  // every name is free
  Listen("");
}
FakeServer::~FakeServer() { Stop(); }

void FakeServer::Listen(const std::string& address) {
  Stop();
  grpc::ServerBuilder builder;
  if (!address.empty()) builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&services_->datasets);
  builder.RegisterService(&services_->jobs);
  builder.RegisterService(&services_->models);
  builder.RegisterService(&services_->inference);
  builder.RegisterService(&services_->info);
  builder.RegisterService(&services_->uploads);
  builder.RegisterService(&services_->operations);
  server_ = builder.BuildAndStart();
}

void FakeServer::Stop() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());  // Cancels running calls.
  server_.reset();
}

Status Error(grpc::StatusCode code, const std::string& message, const std::string& reason, const std::string& field) {
  google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("nibble");
  if (!field.empty()) (*info.mutable_metadata())["field"] = field;
  details.add_details()->PackFrom(info);
  if (!field.empty()) {
    google::rpc::BadRequest bad;
    bad.add_field_violations()->set_field(field);
    bad.mutable_field_violations(0)->set_description(message);
    details.add_details()->PackFrom(bad);
  }
  return Status(code, message, details.SerializeAsString());
}

ClientOptions FastOptions() {
  ClientOptions options;
  options.deadline = absl::Seconds(30);
  options.long_deadline = absl::Seconds(60);
  options.first_wait = absl::Milliseconds(1);
  options.longest_wait = absl::Milliseconds(20);
  options.reconnect_for = absl::Seconds(20);
  return options;
}

namespace {

Result RunWith(FakeServer& server, std::vector<std::string> arguments, const std::string& input,
               cli::InterruptNote* interrupt, bool out_is_tty) {
  std::istringstream in(input);
  std::ostringstream out;
  std::ostringstream err;
  cli::Terminal terminal{in, out, err};
  terminal.interrupt = interrupt;
  terminal.out_is_tty = out_is_tty;
  Result result;
  result.exit = cli::Run(std::move(arguments), terminal, [&](const std::string&, const ClientOptions&) {
    return Client(server.Channel(), FastOptions());
  });
  result.out = out.str();
  result.err = err.str();
  return result;
}

}  // namespace

Result RunNibble(FakeServer& server, std::vector<std::string> arguments, const std::string& input,
                 cli::InterruptNote* interrupt) {
  return RunWith(server, std::move(arguments), input, interrupt, /*out_is_tty=*/false);
}

Result RunNibbleInTerminal(FakeServer& server, std::vector<std::string> arguments) {
  return RunWith(server, std::move(arguments), "", nullptr, /*out_is_tty=*/true);
}

std::string TemporaryFolder() {
  struct Folder {
    Folder() {
      std::string pattern = (std::filesystem::temp_directory_path() / "nibble_client_XXXXXX").string();
      path = mkdtemp(pattern.data());
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
    int made = 0;
  };
  static Folder root;
  const std::string path = root.path + "/" + std::to_string(root.made++);
  std::filesystem::create_directory(path);
  return path;
}

std::string WriteFile(const std::string& name, const std::string& content) {
  const std::string path = TemporaryFolder() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::vector<v1::GenerateReply> Replies(const std::vector<std::string>& deltas) {
  std::vector<v1::GenerateReply> replies(1);
  replies[0].mutable_start()->set_request_id("request-1");
  for (const std::string& text : deltas) replies.emplace_back().mutable_delta()->set_text(text);
  replies.emplace_back().mutable_finish()->set_reason(v1::FINISH_REASON_EOS);
  replies.emplace_back().mutable_usage()->set_completion_tokens(static_cast<std::int32_t>(deltas.size()));
  return replies;
}

}  // namespace nibble::client
