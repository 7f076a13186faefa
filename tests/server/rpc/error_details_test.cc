// Checks the tables of docs/errors.md over the wire, as a client sees them. The document names the tests of all other
// reasons (coverage_test checks that).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "client/http_get.h"
#include "server/base/strings.h"
#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/status_details.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/token_line.h"

namespace nibble {
namespace {

using base::StrCat;
using ::testing::HasSubstr;
using testing_support::AppTest;
using testing_support::Find;
using testing_support::kTinyTexts;
using testing_support::TinyJob;
using testing_support::TokenLine;

class ErrorDetailsTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.trainer_path = "/bin/false";  // starts, fails, is retried
    options.engine.kv_tokens = 256;
    return options;
  }
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
  }
  // Checks what every error has: the same code and text twice, one ErrorInfo of this domain.
  google::rpc::Status Check(const grpc::Status& status, grpc::StatusCode code, const std::string& reason, bool of_operation = false) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    const google::rpc::Status details = testing_support::Details(status);
    EXPECT_EQ(details.code(), code);
    EXPECT_EQ(details.message(), status.error_message());
    int infos = 0;
    for (const auto& detail : details.details()) infos += detail.Is<google::rpc::ErrorInfo>();
    EXPECT_EQ(infos, 1) << status.error_message();
    const auto info = Find<google::rpc::ErrorInfo>(details).value_or(google::rpc::ErrorInfo());
    EXPECT_EQ(info.reason(), reason) << status.error_message();
    EXPECT_EQ(info.domain(), "nibble");
    const bool retryable = code == grpc::StatusCode::UNAVAILABLE || reason == "QUEUE_FULL" || reason == "TENANT_QUOTA";
    EXPECT_EQ(Find<google::rpc::RetryInfo>(details).has_value(), retryable) << reason;
    EXPECT_EQ(Find<google::rpc::QuotaFailure>(details).has_value(), code == grpc::StatusCode::RESOURCE_EXHAUSTED) << reason;
    const auto failure = Find<google::rpc::PreconditionFailure>(details);
    EXPECT_EQ(failure.has_value(), code == grpc::StatusCode::FAILED_PRECONDITION) << reason;
    if (failure.has_value()) {
      EXPECT_EQ(failure->violations(0).type(), reason);
      EXPECT_FALSE(failure->violations(0).subject().empty()) << reason;
      EXPECT_FALSE(failure->violations(0).description().empty()) << reason;
    }
    const bool named = code == grpc::StatusCode::NOT_FOUND || code == grpc::StatusCode::ALREADY_EXISTS;
    EXPECT_EQ(Find<google::rpc::ResourceInfo>(details).has_value(), named) << reason;
    // An operation is logged under its own name, not under a call's id.
    const bool ours = (code == grpc::StatusCode::INTERNAL || code == grpc::StatusCode::DATA_LOSS) && !of_operation;
    EXPECT_EQ(Find<google::rpc::RequestInfo>(details).has_value(), ours) << reason;
    return details;
  }
  static std::string Metadata(const google::rpc::Status& details, const std::string& key) {
    const auto info = Find<google::rpc::ErrorInfo>(details).value_or(google::rpc::ErrorInfo());
    const auto it = info.metadata().find(key);
    return it == info.metadata().end() ? "(none)" : it->second;
  }
  // The resource that is missing or taken, such as "model tiny".
  static std::string Resource(const google::rpc::Status& details) {
    const auto resource = Find<google::rpc::ResourceInfo>(details).value_or(google::rpc::ResourceInfo());
    return StrCat(resource.resource_type(), " ", resource.resource_name());
  }
  // The object whose state is wrong.
  static std::string Subject(const google::rpc::Status& details) {
    const auto failure = Find<google::rpc::PreconditionFailure>(details).value_or(google::rpc::PreconditionFailure());
    return failure.violations_size() == 1 ? failure.violations(0).subject() : "(none)";
  }
  static std::string Fields(const google::rpc::Status& details) {
    std::string joined;
    const auto bad = Find<google::rpc::BadRequest>(details).value_or(google::rpc::BadRequest());
    for (const auto& violation : bad.field_violations()) joined += (joined.empty() ? "" : " ") + violation.field();
    return joined;
  }
  grpc::Status Generate(const v1::GenerateRequest& request) {
    v1::GenerateResponse response;
    return Call(inference_, &v1::InferenceService::Stub::Generate, request, &response);
  }
  grpc::Status Create(const v1::CreateJobRequest& request, v1::Job* job) {
    return Call(jobs_, &v1::FineTuneService::Stub::CreateJob, request, job);
  }
  // The error of a job that was accepted and whose plan then failed: what a CreateJob that read the rows would have
  // answered.
  grpc::Status ErrorOfPlan(const v1::CreateJobRequest& request) {
    v1::Job job;
    const grpc::Status created = Create(request, &job);
    EXPECT_TRUE(created.ok()) << created.error_message();
    v1::GetJobRequest get;
    get.set_name(job.name());
    for (int i = 0; created.ok() && job.state() == v1::JOB_STATE_PLANNING && i < 6000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const grpc::Status got = Call(jobs_, &v1::FineTuneService::Stub::GetJob, get, &job);
      EXPECT_TRUE(got.ok()) << got.error_message();
    }
    EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
    return grpc::Status(static_cast<grpc::StatusCode>(job.error().code()), job.error().message(), job.error().SerializeAsString());
  }
  void UploadTexts() { Upload("texts", kTinyTexts); }
  // Begins the import of a path below the import root.
  google::longrunning::Operation Begin(const std::string& path, const std::string& name) {
    v1::ImportModelRequest request;
    request.set_server_path(path);
    request.set_name(name);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return operation;
  }
  void Take(const std::string& path) {
    const auto done = Wait(Begin(path, path));
    ASSERT_TRUE(done.has_response()) << done.error().message();
  }
  google::longrunning::Operation ConvertTiny(const std::string& name) {
    v1::ConvertModelRequest request;
    request.set_model("tiny");
    request.set_name(name);
    request.set_target(v1::MODEL_FORMAT_INT8);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ConvertModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return Wait(operation);
  }
  // `file`: a path below the folder of models.
  void FlipLastByte(const std::string& file) {
    const std::string path = directory_ + "/state/models/" + file;
    std::string bytes = model::ReadBytes(path);
    ASSERT_FALSE(bytes.empty());
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    model::WriteBytes(path, bytes);
  }
  int VerifyFailures() {
    const auto answer = client::HttpGet(base::StrCat("127.0.0.1:", app_->http_port()), "/metrics", absl::Minutes(1));
    constexpr char kCounter[] = "\nnibble_artifact_verify_failures_total ";
    const std::size_t at = answer.ok() ? answer->body.find(kCounter) : std::string::npos;
    return at == std::string::npos ? -1 : std::stoi(answer->body.substr(at + sizeof kCounter - 1));
  }
};

TEST_F(ErrorDetailsTest, InvalidArgumentFieldViolation) {
  UploadTexts();
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_qlora()->set_r(0);
  request.mutable_spec()->mutable_optim()->set_lr(-1);
  v1::Job job;
  const auto details = Check(Create(request, &job), grpc::StatusCode::INVALID_ARGUMENT, "FIELD_VIOLATION");
  EXPECT_EQ(Fields(details), "optim.lr qlora.r");
  EXPECT_NE(Metadata(details, "field"), "(none)");
}

// The message names both the limit and the number in the request.
TEST_F(ErrorDetailsTest, InvalidArgumentTooManyStops) {
  const auto ask = [&](int strings, int tokens) {
    v1::GenerateRequest request = Prompt("tiny", "a", 1);
    for (int i = 0; i < strings; ++i) request.mutable_stopping()->add_stop("stop" + std::to_string(i));
    for (int i = 0; i < tokens; ++i) request.mutable_stopping()->add_stop_token_ids(i % 100);
    return Generate(request);
  };
  const grpc::Status most = ask(16, 128);
  EXPECT_TRUE(most.ok()) << most.error_message();
  const grpc::Status strings = ask(17, 0);
  EXPECT_EQ(Fields(Check(strings, grpc::StatusCode::INVALID_ARGUMENT, "FIELD_VIOLATION")), "stopping.stop");
  EXPECT_THAT(strings.error_message(), HasSubstr("has 17 strings, wanted at most 16"));
  const grpc::Status tokens = ask(0, 129);
  EXPECT_EQ(Fields(Check(tokens, grpc::StatusCode::INVALID_ARGUMENT, "FIELD_VIOLATION")), "stopping.stop_token_ids");
  EXPECT_THAT(tokens.error_message(), HasSubstr("has 129 tokens, wanted at most 128"));
}

TEST_F(ErrorDetailsTest, InvalidArgumentDatasetFormat) {
  const std::string rows = "{\"text\": \"a\"}\n{\"text\": 5}\nno row\n";
  v1::UploadDatasetHeader header;
  header.set_name("bad");
  header.set_format(v1::DATASET_FORMAT_TEXT);
  v1::Dataset dataset;
  EXPECT_EQ(Fields(Check(Upload(header, rows, &dataset), grpc::StatusCode::INVALID_ARGUMENT, "DATASET_FORMAT")), "line 2 line 3");
}

TEST_F(ErrorDetailsTest, InvalidArgumentNoTrainableTokens) {
  std::string prompt;
  for (int i = 0; i < 64; ++i) prompt += "a b ";
  Upload("texts", "{\"prompt\": \"" + prompt + "\", \"completion\": \"c\"}\n");
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_data()->set_max_seq_len(8);
  const auto details = Check(ErrorOfPlan(request), grpc::StatusCode::INVALID_ARGUMENT, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(Fields(details), "train_dataset");
  EXPECT_EQ(Metadata(details, "fault"), "user");
}

TEST_F(ErrorDetailsTest, InvalidArgumentPromptTooLong) {
  v1::GenerateRequest request = Prompt("tiny", "", 1);
  for (int i = 0; i < 300; ++i) request.mutable_token_ids()->add_ids(5);
  const auto details = Check(Generate(request), grpc::StatusCode::INVALID_ARGUMENT, "PROMPT_TOO_LONG");
  EXPECT_EQ(Metadata(details, "tokens"), "300");
  EXPECT_EQ(Metadata(details, "max"), "256");
}

// "strict" has a template that refuses every conversation, "bare" has none, "broken" an invalid one.
class TemplateErrorTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.import_root = directory_ + "/root";
    std::filesystem::create_directory(options.import_root);
    for (const char* name : {"hf_tied_bf16", "strict", "bare", "broken"}) {
      std::filesystem::copy(model::Golden("hf_tied_bf16"), StrCat(options.import_root, "/", name));
    }
    model::WriteBytes(options.import_root + "/strict/chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
    std::filesystem::remove(options.import_root + "/bare/chat_template.jinja");
    model::WriteBytes(options.import_root + "/broken/chat_template.jinja", "{% if %}");
    return options;
  }
  grpc::Status Chat(const std::string& model) {
    v1::ChatRequest request;
    request.mutable_request()->set_model(model);
    auto* message = request.mutable_request()->mutable_chat()->add_messages();
    message->set_role("user");
    message->set_content("a b");
    v1::GenerateResponse response;
    return Call(inference_, &v1::InferenceService::Stub::Chat, request, &response);
  }
  grpc::Status Preview(const std::string& model) {
    v1::PreviewDatasetRequest request;
    request.set_dataset("chats");
    request.set_model(model);
    v1::PreviewDatasetResponse response;
    return Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, request, &response);
  }
};

// The model was imported with this template: nothing is damaged.
TEST_F(TemplateErrorTest, InvalidTemplateOfAModelIsInvalidArgument) {
  Take("broken");
  v1::TokenizeRequest request;
  request.set_model("broken");
  request.set_text("a b");
  v1::TokenizeResponse response;
  const grpc::Status status = Call(inference_, &v1::InferenceService::Stub::Tokenize, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("chat template"));
}

TEST_F(TemplateErrorTest, InvalidArgumentTemplateError) {
  Take("strict");
  Take("bare");
  Upload("chats", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})" "\n");
  const grpc::Status refused = Chat("strict");
  EXPECT_EQ(Fields(Check(refused, grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat.messages");
  EXPECT_THAT(refused.error_message(), HasSubstr("roles must alternate"));
  EXPECT_EQ(Fields(Check(Chat("bare"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat_template");
  EXPECT_EQ(Fields(Check(Preview("strict"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "messages");
  EXPECT_EQ(Fields(Check(Preview("bare"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat_template");
}

TEST_F(ErrorDetailsTest, NotFound) {
  const auto check = [&](const grpc::Status& status, const std::string& reason, const std::string& resource) {
    EXPECT_EQ(Resource(Check(status, grpc::StatusCode::NOT_FOUND, reason)), resource);
  };
  v1::GetJobRequest get_job;
  get_job.set_name("job-none");
  v1::Job job;
  check(Call(jobs_, &v1::FineTuneService::Stub::GetJob, get_job, &job), "JOB", "job job-none");
  check(Generate(Prompt("nobody", "a", 1)), "MODEL", "model nobody");
  v1::GetDatasetRequest get_dataset;
  get_dataset.set_name("nothing");
  v1::Dataset dataset;
  check(Call(datasets_, &v1::DatasetService::Stub::GetDataset, get_dataset, &dataset), "DATASET", "dataset nothing");
  v1::PublishCheckpointRequest publish;
  publish.set_checkpoint("job-none/5");
  publish.set_name("m");
  v1::PublishCheckpointResponse published;
  check(Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &published), "CHECKPOINT", "checkpoint job-none/5");
  google::longrunning::GetOperationRequest get_operation;
  get_operation.set_name("operations/none");
  google::longrunning::Operation operation;
  check(Call(operations_, &google::longrunning::Operations::Stub::GetOperation, get_operation, &operation), "OPERATION",
        "operation operations/none");
  v1::ImportModelRequest import;
  import.set_upload_id("upload-none");
  import.set_name("m");
  check(Call(models_, &v1::ModelService::Stub::ImportModel, import, &operation), "UPLOAD", "upload upload-none");
  v1::DownloadArtifactRequest download;
  download.set_artifact_id("export-none");
  grpc::ClientContext context;
  const auto reader = models_->DownloadArtifact(&context, download);
  v1::DownloadArtifactResponse piece;
  EXPECT_FALSE(reader->Read(&piece));
  check(reader->Finish(), "ARTIFACT", "artifact export-none");
}

TEST_F(ErrorDetailsTest, AlreadyExistsNameTakenAndIdempotencyConflict) {
  UploadTexts();
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_publish()->set_output_model("tiny");
  v1::Job job;
  const auto check = [&](const grpc::Status& status, const std::string& reason, const std::string& resource) {
    EXPECT_EQ(Resource(Check(status, grpc::StatusCode::ALREADY_EXISTS, reason)), resource);
  };
  check(Create(request, &job), "NAME_TAKEN", "model tiny");
  request = TinyJob();
  request.set_request_id("8b7a3d1e-0000-4000-8000-000000000001");
  ASSERT_TRUE(Create(request, &job).ok());
  const std::string first = job.name();
  request.mutable_spec()->mutable_run()->set_max_steps(3);
  check(Create(request, &job), "IDEMPOTENCY_CONFLICT", "job " + first);
  request = TinyJob();
  check(Create(request, &job), "NAME_TAKEN", "model out");  // an unfinished job has the name

  v1::ImportModelRequest import;
  import.set_server_path("hf_tied_bf16");
  import.set_name("tiny");
  google::longrunning::Operation operation;
  const auto begin = [&] { return Call(models_, &v1::ModelService::Stub::ImportModel, import, &operation); };
  check(begin(), "NAME_TAKEN", "model tiny");
  import.set_name("other");
  import.set_request_id("8b7a3d1e-0000-4000-8000-000000000002");
  ASSERT_TRUE(begin().ok());
  const std::string begun = operation.name();
  import.set_name("another");
  check(begin(), "IDEMPOTENCY_CONFLICT", "operation " + begun);
  v1::ConvertModelRequest convert;
  convert.set_model("tiny");
  convert.set_name("tiny");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  check(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation), "NAME_TAKEN", "model tiny");

  v1::UploadDatasetHeader texts;
  texts.set_name("texts");
  v1::Dataset dataset;
  check(Upload(texts, "{\"text\": \"another\"}\n", &dataset), "NAME_TAKEN", "dataset texts");
}

TEST_F(ErrorDetailsTest, FailedPrecondition) {
  v1::UnloadModelRequest unload;
  unload.set_name("tiny");
  v1::UnloadModelResponse unloaded;
  const auto check = [&](const grpc::Status& status, const std::string& reason, const std::string& subject) {
    const auto details = Check(status, grpc::StatusCode::FAILED_PRECONDITION, reason);
    EXPECT_EQ(Subject(details), subject) << reason;
    return details;
  };
  check(Call(models_, &v1::ModelService::Stub::UnloadModel, unload, &unloaded), "MODEL_NOT_LOADED", "tiny");
  v1::VerifyModelRequest verify;
  verify.set_name("tiny");
  v1::VerifyModelResponse verified;
  check(Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified), "NO_RECORD", "tiny");
  ASSERT_TRUE(Generate(Prompt("tiny", "a", 1)).ok());
  v1::DeleteModelRequest remove;
  remove.set_name("tiny");
  v1::DeleteModelResponse removed;
  const auto in_use = check(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed), "MODEL_IN_USE", "tiny");
  EXPECT_NE(Metadata(in_use, "user"), "(none)");
  UploadTexts();
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  v1::DeleteJobRequest delete_job;
  delete_job.set_name(job.name());
  v1::DeleteJobResponse deleted;
  check(Call(jobs_, &v1::FineTuneService::Stub::DeleteJob, delete_job, &deleted), "ILLEGAL_STATE", job.name());
  v1::DeleteDatasetRequest delete_dataset;
  delete_dataset.set_name("texts");
  v1::DeleteDatasetResponse gone;
  const auto used = check(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, delete_dataset, &gone), "DATASET_IN_USE", "texts");
  EXPECT_EQ(Metadata(used, "user"), "job " + job.name());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  v1::Job moved;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &moved).ok());
  // Illegal by the table of states, and because there is no trainer.
  v1::ResumeJobRequest resume;
  resume.set_name(job.name());
  check(Call(jobs_, &v1::FineTuneService::Stub::ResumeJob, resume, &moved), "ILLEGAL_STATE", job.name());
  v1::CheckpointJobRequest checkpoint;
  checkpoint.set_name(job.name());
  check(Call(jobs_, &v1::FineTuneService::Stub::CheckpointJob, checkpoint, &moved), "ILLEGAL_STATE", job.name());
}

TEST_F(ErrorDetailsTest, FailedPreconditionNotServable) {
  UploadTexts();
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  ASSERT_FALSE(testing_support::PlantCheckpoint(directory_, job.name(), 3).empty());  // complete, but has no adapter
  v1::PublishCheckpointRequest publish;
  publish.set_checkpoint(job.name() + "/3");
  publish.set_name("m");
  v1::PublishCheckpointResponse published;
  const auto details = Check(Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &published),
                             grpc::StatusCode::FAILED_PRECONDITION, "NOT_SERVABLE");
  EXPECT_EQ(Subject(details), publish.checkpoint());
}

// Folders in the format of transformers: "masters" holds a BitNet model, "ternary" its codes. In the others something
// is missing or wrong.
class ImportedErrorTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.import_root = directory_ + "/root";
    std::filesystem::create_directory(options.import_root);
    const auto add = [&](const std::string& golden, const std::string& name) {
      std::filesystem::copy(model::Golden(golden), StrCat(options.import_root, "/", name));
      return StrCat(options.import_root, "/", name, "/");
    };
    add("hf_tied_bf16", "hf_tied_bf16");
    const std::string masters = add("bitnet/auto_online", "masters"), ternary = add("bitnet/auto_packed", "ternary");
    for (const std::string& path : {masters, ternary}) {
      std::filesystem::copy(model::Golden("bitnet/tokenizer.json"), path + "tokenizer.json");
    }
    std::filesystem::remove(add("hf_tied_bf16", "mute") + "tokenizer.json");
    model::WriteBytes(add("hf_tied_bf16", "cut") + "model.safetensors", "no tensors");
    const std::string header = StrCat(R"({")", std::string(600, 'a'), R"(": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})");
    std::string named(8, '\0');
    for (std::size_t i = 0; i < 2; ++i) named[i] = static_cast<char>(header.size() >> (8 * i));
    model::WriteBytes(add("hf_tied_bf16", "long") + "model.safetensors", named + header);
    model::WriteBytes(add("hf_tied_bf16", "foreign") + "config.json",
                      R"({"architectures": ["OtherForCausalLM"], "model_type": "other"})");
    return options;
  }
};

TEST_F(ImportedErrorTest, FailedPreconditionOfBitNetModels) {
  Take("masters");
  Take("ternary");
  const grpc::Status raw = Generate(Prompt("masters", "a", 1));
  EXPECT_EQ(Subject(Check(raw, grpc::StatusCode::FAILED_PRECONDITION, "RAW_MASTERS")), "masters");
  v1::ConvertModelRequest convert;
  convert.set_model("ternary");
  convert.set_name("twice");
  convert.set_target(v1::MODEL_FORMAT_TERNARY);
  google::longrunning::Operation operation;
  const grpc::Status twice = Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation);
  EXPECT_EQ(Subject(Check(twice, grpc::StatusCode::FAILED_PRECONDITION, "ALREADY_TERNARY")), "ternary");
}

TEST_F(ImportedErrorTest, InvalidArgumentModelFormatNamesItsKind) {
  const std::map<std::string, std::string> kinds = {
      {"mute", "NO_TOKENIZER"}, {"cut", "MALFORMED_FILE"}, {"foreign", "UNSUPPORTED_MODEL"}, {"long", "MALFORMED_FILE"}};
  for (const auto& [path, kind] : kinds) {
    const auto done = Wait(Begin(path, path));
    ASSERT_TRUE(done.has_error()) << path;
    EXPECT_EQ(done.error().code(), grpc::StatusCode::INVALID_ARGUMENT) << done.error().message();
    const auto info = Find<google::rpc::ErrorInfo>(done.error());
    ASSERT_TRUE(info.has_value()) << path;
    EXPECT_EQ(info->reason(), "MODEL_FORMAT") << path;
    EXPECT_EQ(info->metadata().at("kind"), kind) << done.error().message();
  }
}

TEST_F(ErrorDetailsTest, ResourceExhaustedKvFull) {
  v1::GenerateRequest request = Prompt("tiny", "a b c", 240);
  request.mutable_sampling()->set_n(16);
  const auto details = Check(Generate(request), grpc::StatusCode::RESOURCE_EXHAUSTED, "KV_FULL");
  EXPECT_GT(std::stoi(Metadata(details, "need")), std::stoi(Metadata(details, "have")));
  EXPECT_EQ(Find<google::rpc::QuotaFailure>(details)->violations(0).subject(), "KV_FULL");
}

// No job may wait in the queue.
class FullQueueTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.max_queued_jobs = 0;
    options.max_stream_messages = 3;
    options.max_model_bytes = 1000;
    options.max_dataset_bytes = 1000;
    return options;
  }
};

TEST_F(FullQueueTest, ResourceExhaustedQueueFullSuggestsADelay) {
  UploadTexts();
  v1::Job job;
  const auto details = Check(Create(TinyJob(), &job), grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL");
  // No trainer runs from which the time could be estimated.
  EXPECT_EQ(Metadata(details, "retry_ms"), "60000");
  EXPECT_EQ(Find<google::rpc::RetryInfo>(details)->retry_delay().seconds(), 60);
}

TEST_F(FullQueueTest, ResourceExhaustedMessageTooLarge) {
  grpc::ClientContext context;
  v1::Dataset dataset;
  auto writer = datasets_->UploadDataset(&context, &dataset);
  v1::UploadDatasetRequest message;
  message.mutable_header()->set_name("many");
  writer->Write(message);
  message.set_chunk("a");
  for (int i = 0; i < 10 && writer->Write(message); ++i) {
  }
  writer->WritesDone();
  Check(writer->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE");
}

// Refused before the first byte.
TEST_F(FullQueueTest, ResourceExhaustedBySizeAnnouncedInAHeader) {
  grpc::ClientContext model_context;
  v1::UploadModelResponse upload;
  auto models = models_->UploadModel(&model_context, &upload);
  v1::UploadModelRequest model;
  model.mutable_header()->set_size_bytes(1001);
  models->Write(model);
  models->WritesDone();
  const auto model_too_large = Check(models->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, "MODEL_TOO_LARGE");
  EXPECT_EQ(Metadata(model_too_large, "max_bytes"), "1000");
  grpc::ClientContext dataset_context;
  v1::Dataset dataset;
  auto datasets = datasets_->UploadDataset(&dataset_context, &dataset);
  v1::UploadDatasetRequest rows;
  rows.mutable_header()->set_name("large");
  rows.mutable_header()->set_size_bytes(1001);
  datasets->Write(rows);
  datasets->WritesDone();
  const auto dataset_too_large = Check(datasets->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, "UPLOAD_TOO_LARGE");
  EXPECT_EQ(Metadata(dataset_too_large, "max_bytes"), "1000");
}

// Trainers and models get almost no memory.
class SmallMemoryTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.train_memory_bytes = 1000;
    options.serve_memory_bytes = 12'000;  // the import of the model fits
    return options;
  }
  void Refused(const grpc::Status& status, const std::string& have) {
    const auto details = Check(status, grpc::StatusCode::RESOURCE_EXHAUSTED, "OUT_OF_DEVICE_MEMORY");
    EXPECT_EQ(Metadata(details, "have"), have);
    EXPECT_GT(std::stoll(Metadata(details, "need")), 12'000);
    EXPECT_THAT(Metadata(details, "plan"), HasSubstr("weights "));
    EXPECT_EQ(Find<google::rpc::QuotaFailure>(details)->violations(0).subject(), "OUT_OF_DEVICE_MEMORY");
  }
};

TEST_F(SmallMemoryTest, ResourceExhaustedOutOfDeviceMemoryOfAJobAndOfAModel) {
  UploadTexts();
  Refused(ErrorOfPlan(TinyJob()), "1000");
  v1::LoadModelRequest load;
  load.set_name("tiny");
  v1::LoadModelResponse loaded;
  Refused(Call(models_, &v1::ModelService::Stub::LoadModel, load, &loaded), "12000");
  Refused(Generate(Prompt("tiny", "a", 1)), "12000");
}

// A server with tokens, where each principal may have one job and one plan.
class QuotaTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.max_jobs_per_principal = 1;
    options.max_plans_per_principal = 1;
    if (!with_tokens_) return options;
    options.security.token_file = directory_ + "/tokens";
    std::ofstream(options.security.token_file) << TokenLine("ann", "train") << TokenLine("bob", "train");
    return options;
  }
  grpc::Status CreateAs(const std::string& name, const std::string& output) {
    v1::CreateJobRequest request = TinyJob();
    request.mutable_spec()->mutable_publish()->set_output_model(output);
    return testing_support::Ask(channel_, {.method = "nibble.v1.FineTuneService/CreateJob",
                                           .request = request.SerializeAsString(),
                                           .metadata = {{"authorization", "Bearer token-" + name}}})
        .status;
  }
  bool with_tokens_ = false;
};

// The second plan is refused while the first reads its data.
TEST_F(QuotaTest, ResourceExhaustedQueueFullOfPlansSuggestsADelay) {
  std::string rows;
  while (rows.size() < 900'000) rows += "{\"text\": \"a b c d e f g h a b c d e f g h a b c d e f g h\"}\n";
  Upload("texts", rows);
  app_.reset();
  with_tokens_ = true;
  StartApp();
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinyJob().spec();
  const auto plan = [&] {
    return testing_support::Ask(channel_, {.method = "nibble.v1.FineTuneService/PlanJob",
                                           .request = request.SerializeAsString(),
                                           .metadata = {{"authorization", "Bearer token-ann"}}})
        .status;
  };
  const grpc::Status first = plan();
  ASSERT_TRUE(first.ok()) << first.error_message();
  const auto details = Check(plan(), grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL");
  EXPECT_EQ(Metadata(details, "flag"), "--max_plans_per_principal");
  EXPECT_EQ(Metadata(details, "max"), "1");
  EXPECT_EQ(Metadata(details, "retry_ms"), "1000") << "no plan has ended: no estimate";
}

TEST_F(QuotaTest, ResourceExhaustedTenantQuota) {
  UploadTexts();
  app_.reset();
  with_tokens_ = true;
  StartApp();
  const grpc::Status first = CreateAs("ann", "one");
  ASSERT_TRUE(first.ok()) << first.error_message();
  const auto details = Check(CreateAs("ann", "two"), grpc::StatusCode::RESOURCE_EXHAUSTED, "TENANT_QUOTA");
  EXPECT_EQ(Metadata(details, "max"), "1");
  EXPECT_EQ(Find<google::rpc::QuotaFailure>(details)->violations(0).subject(), "TENANT_QUOTA");
  EXPECT_EQ(Find<google::rpc::RetryInfo>(details)->retry_delay().seconds(), 60) << "no trainer runs: no estimate";
  const grpc::Status other = CreateAs("bob", "three");
  EXPECT_TRUE(other.ok()) << other.error_message();
}

TEST_F(ErrorDetailsTest, AbortedAndOutOfRange) {
  v1::DeleteModelRequest remove;
  remove.set_name("tiny");
  remove.set_etag("old");
  v1::DeleteModelResponse removed;
  Check(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed), grpc::StatusCode::ABORTED, "ETAG_MISMATCH");
  v1::ListModelsRequest list;
  list.set_page_token("not ours");
  v1::ListModelsResponse page;
  Check(Call(models_, &v1::ModelService::Stub::ListModels, list, &page), grpc::StatusCode::OUT_OF_RANGE, "PAGE_TOKEN");
}

// A client that cancels gets no status; a client whose request is aborted by another one does.
TEST_F(ErrorDetailsTest, CancelledReportsStageTokensAndUsage) {
  ASSERT_TRUE(Generate(Prompt("tiny", "a", 1)).ok());  // loads the model
  grpc::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    v1::GenerateRequest request = Prompt("tiny", "a b c", 240);
    request.set_request_id("mine");
    std::thread running([&] { status = Generate(request); });
    v1::AbortRequest abort;
    abort.add_request_ids("mine");
    v1::AbortResponse aborted;
    for (int tries = 0; tries < 1000 && aborted.aborted_request_ids_size() == 0; ++tries) {
      EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Abort, abort, &aborted).ok());
    }
    running.join();
  }
  const auto details = Check(status, grpc::StatusCode::CANCELLED, "CANCELLED");
  const std::string stage = Metadata(details, "stage");
  const int tokens = std::stoi(Metadata(details, "tokens"));
  EXPECT_EQ(stage == "DECODE", tokens > 0) << stage << " " << tokens;
  EXPECT_TRUE(stage == "QUEUE" || stage == "PREFILL" || stage == "DECODE") << stage;
  const auto usage = Find<v1::Usage>(details);
  EXPECT_EQ(usage.has_value(), stage != "QUEUE");
  EXPECT_EQ(usage.value_or(v1::Usage()).completion_tokens(), tokens);
}

// A transport on which gRPC checks no credentials, as behind a proxy: there the handlers' wrappers refuse.
class RefusedCallerTest : public ErrorDetailsTest {
 protected:
  AppOptions Options() override {
    AppOptions options = ErrorDetailsTest::Options();
    options.security.token_file = directory_ + "/tokens";
    std::ofstream(options.security.token_file) << TokenLine("viewer", "viewer");
    options.grpc_address = "0.0.0.0:0";
    options.security.insecure = true;
    return options;
  }
  void SetUp() override { AppTest::SetUp(); }  // nothing is imported: no caller may
  grpc::Status Ask(const std::string& method, const std::multimap<std::string, std::string>& metadata) {
    return testing_support::Ask(channel_, {.method = method, .metadata = metadata}).status;
  }
};

TEST_F(RefusedCallerTest, UnauthenticatedAndPermissionDenied) {
  const std::string list = "nibble.v1.ModelService/ListModels", stream = "nibble.v1.FineTuneService/WatchJob",
                    upload = "nibble.v1.ModelService/UploadModel";
  for (const std::string& method : {list, stream, upload}) {
    Check(Ask(method, {}), grpc::StatusCode::UNAUTHENTICATED, "TOKEN_MISSING");
    Check(Ask(method, {{"authorization", "Bearer wrong"}}), grpc::StatusCode::UNAUTHENTICATED, "TOKEN_INVALID");
  }
  const auto role = Check(Ask(upload, {{"authorization", "Bearer token-viewer"}}), grpc::StatusCode::PERMISSION_DENIED, "ROLE");
  EXPECT_NE(Metadata(role, "needed"), "(none)");
}

TEST_F(ErrorDetailsTest, UnavailableDraining) {
  v1::DrainRequest request;
  request.mutable_deadline()->set_seconds(5);
  v1::DrainResponse response;
  ASSERT_TRUE(Call(server_, &v1::ServerService::Stub::Drain, request, &response).ok());
  v1::ListModelsResponse models;
  const auto details = Check(Call(models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(), &models),
                             grpc::StatusCode::UNAVAILABLE, "DRAINING");
  EXPECT_GT(Find<google::rpc::RetryInfo>(details)->retry_delay().seconds(), 0);
}

TEST_F(ErrorDetailsTest, DataLossOfAModelIsReportedWithTheRequestId) {
  FlipLastByte("tiny/model.safetensors");
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  v1::GenerateResponse response;
  const auto details =
      Check(inference_->Generate(&context, Prompt("tiny", "a", 1), &response), grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT");
  EXPECT_EQ(Find<google::rpc::RequestInfo>(details)->request_id(), "mine");
}

// Every result made from a model has its own manifest, which must not vouch for altered bytes.
TEST_F(ErrorDetailsTest, DataLossOfAModelIsFoundBeforeAnythingIsMadeFromIt) {
  UploadTexts();
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  ASSERT_FALSE(testing_support::PlantCheckpoint(directory_, job.name(), 7).empty());
  FlipLastByte("tiny/model.safetensors");
  const auto check = [&](const google::longrunning::Operation& done) {
    EXPECT_EQ(done.error().code(), static_cast<int>(grpc::StatusCode::DATA_LOSS)) << done.error().message();
    EXPECT_EQ(Find<google::rpc::ErrorInfo>(done.error()).value_or(google::rpc::ErrorInfo()).reason(), "ARTIFACT_CORRUPT");
  };
  check(ConvertTiny("eight"));
  google::longrunning::Operation operation;
  v1::ExportModelRequest exported;
  exported.set_model("tiny");
  exported.set_format(v1::EXPORT_FORMAT_HF);
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ExportModel, exported, &operation).ok());
  check(Wait(operation));
  v1::ImportModelRequest adapter;
  adapter.set_server_path("hf_tied_bf16");  // the base is checked first
  adapter.set_base_model("tiny");
  adapter.set_name("adapter");
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ImportModel, adapter, &operation).ok());
  check(Wait(operation));
  v1::PublishCheckpointRequest publish;
  publish.set_checkpoint(StrCat(job.name(), "/7"));
  publish.set_name("published");
  v1::PublishCheckpointResponse published;
  const grpc::Status status = Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &published);
  EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT", /*of_operation=*/true), "model"), "tiny");
  EXPECT_EQ(VerifyFailures(), 4);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
  for (const std::string name : {"eight", "adapter", "published"}) {
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/state/models/" + name)) << name;
  }
}

// After a restart, damage is still reported and counted, and the name stays taken until the model or dataset is
// deleted.
TEST_F(ErrorDetailsTest, DataLossOfModelsDamagedWhileNoServerRan) {
  Import("other");
  UploadTexts();
  Upload("rows", kTinyTexts);
  const std::string weights = directory_ + "/state/models/tiny/model.safetensors", whole = model::ReadBytes(weights);
  const auto restart_with = [&](const std::string& bytes) {
    app_.reset();
    model::WriteBytes(weights, bytes);
    StartApp();
  };
  model::WriteBytes(directory_ + "/state/datasets/texts/meta.json", "");
  restart_with(whole.substr(0, whole.size() / 2));
  int failures = 0;
  const auto damaged = [&](const grpc::Status& status) {
    EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT"), "model"), "tiny");
    EXPECT_EQ(VerifyFailures(), ++failures);
  };
  damaged(Generate(Prompt("tiny", "a", 1)));
  v1::ScoreRequest score;
  score.set_model("tiny");
  score.set_text("a b");
  v1::ScoreResponse scored;
  damaged(Call(inference_, &v1::InferenceService::Stub::Score, score, &scored));
  v1::GetModelRequest get;
  get.set_name("tiny");
  v1::Model model;
  damaged(Call(models_, &v1::ModelService::Stub::GetModel, get, &model));
  v1::LoadModelRequest load;
  load.set_name("tiny");
  v1::LoadModelResponse loaded;
  damaged(Call(models_, &v1::ModelService::Stub::LoadModel, load, &loaded));
  v1::VerifyModelRequest verify;
  verify.set_name("tiny");
  v1::VerifyModelResponse verified;
  damaged(Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified));
  v1::ExportModelRequest exported;
  exported.set_model("tiny");
  exported.set_format(v1::EXPORT_FORMAT_HF);
  google::longrunning::Operation operation;
  damaged(Call(models_, &v1::ModelService::Stub::ExportModel, exported, &operation));
  v1::GetDatasetRequest get_dataset;
  get_dataset.set_name("texts");
  v1::Dataset dataset;
  const grpc::Status no_data = Call(datasets_, &v1::DatasetService::Stub::GetDataset, get_dataset, &dataset);
  EXPECT_EQ(Metadata(Check(no_data, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT"), "dataset"), "texts");
  v1::CreateJobRequest create = TinyJob();
  v1::Job job;
  create.mutable_spec()->set_train_dataset("rows");
  Check(Create(create, &job), grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT");

  const auto taken = [&](const grpc::Status& status, const std::string& resource) {
    EXPECT_EQ(Resource(Check(status, grpc::StatusCode::ALREADY_EXISTS, "NAME_TAKEN")), resource);
  };
  create.mutable_spec()->set_base_model("other");
  create.mutable_spec()->mutable_publish()->set_output_model("tiny");
  taken(Create(create, &job), "model tiny");
  v1::ImportModelRequest import;
  import.set_server_path("hf_tied_bf16");
  import.set_name("tiny");
  taken(Call(models_, &v1::ModelService::Stub::ImportModel, import, &operation), "model tiny");
  v1::ConvertModelRequest convert;
  convert.set_model("other");
  convert.set_name("tiny");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  taken(Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation), "model tiny");
  v1::UploadDatasetHeader texts;
  texts.set_name("texts");
  taken(Upload(texts, kTinyTexts, &dataset), "dataset texts");

  v1::ListModelsResponse models;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_FALSE(models.models(0).damaged());
  EXPECT_EQ(models.models(1).name(), "tiny");
  EXPECT_TRUE(models.models(1).damaged());
  EXPECT_EQ(models.models(1).etag(), "");
  v1::ListDatasetsResponse datasets;
  ASSERT_TRUE(Call(datasets_, &v1::DatasetService::Stub::ListDatasets, v1::ListDatasetsRequest(), &datasets).ok());
  ASSERT_EQ(datasets.datasets_size(), 2);
  EXPECT_FALSE(datasets.datasets(0).damaged());
  EXPECT_EQ(datasets.datasets(1).name(), "texts");
  EXPECT_TRUE(datasets.datasets(1).damaged());

  model::WriteBytes(weights, whole);
  EXPECT_TRUE(Generate(Prompt("tiny", "a", 1)).ok()) << "the model was restored";
  restart_with("");
  v1::DeleteModelRequest remove;
  remove.set_name("tiny");
  v1::DeleteModelResponse removed;
  EXPECT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed).ok());
  v1::DeleteDatasetRequest remove_dataset;
  remove_dataset.set_name("texts");
  v1::DeleteDatasetResponse dataset_removed;
  EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, remove_dataset, &dataset_removed).ok());
  Import("tiny");
  UploadTexts();
  EXPECT_TRUE(Generate(Prompt("tiny", "a", 1)).ok());
}

// A file that cannot be read is also damage for a call that only describes the model.
TEST_F(ErrorDetailsTest, DataLossOfAModelThatCannotBeDescribed) {
  Import("other");
  model::WriteBytes(directory_ + "/state/models/tiny/config.json", "{");
  v1::GetModelRequest get;
  get.set_name("tiny");
  v1::Model model;
  const grpc::Status status = Call(models_, &v1::ModelService::Stub::GetModel, get, &model);
  EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT"), "model"), "tiny");
  EXPECT_EQ(VerifyFailures(), 1);
  v1::ListModelsResponse models;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_FALSE(models.models(0).damaged());
  EXPECT_TRUE(models.models(1).damaged());
}

// If a file was damaged while the server ran, that is not the fault of a caller that needs the tokenizer or the
// template.
TEST_F(ErrorDetailsTest, DataLossOfAModelWhoseTextCannotBeRead) {
  UploadTexts();
  Import("other");
  v1::TokenizeRequest tokenize;
  tokenize.set_model("tiny");
  tokenize.set_text("a b");
  v1::DetokenizeRequest detokenize;
  detokenize.set_model("tiny");
  detokenize.add_token_ids(67);
  v1::RenderTemplateRequest render;
  render.set_model("tiny");
  auto* message = render.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a");
  v1::PreviewDatasetRequest preview;
  preview.set_dataset("texts");
  preview.set_model("tiny");
  const auto damaged = [&](const grpc::Status& status, bool of_job = false) {
    EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT", of_job), "model"), "tiny");
  };
  v1::TokenizeResponse ids;
  const std::string directory = directory_ + "/state/models/tiny/";
  const auto same_size = [](std::string text, const std::string& from, const std::string& to) {
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string config = model::ReadBytes(directory + "config.json");
  const std::map<std::string, std::string> altered = {{"config.json", "{"},
                                                      {"./config.json", same_size(config, "\"hidden_size\"", "\"hidden_sizf\"")},
                                                      {"chat_template.jinja", "{% if %}"},
                                                      {"tokenizer.json", "{}"}};
  for (const auto& [file, bytes] : altered) {
    SCOPED_TRACE(file);
    const std::string whole = model::ReadBytes(directory + file);
    model::WriteBytes(directory + file, bytes);
    v1::DetokenizeResponse text;
    v1::RenderTemplateResponse rendered;
    v1::PreviewDatasetResponse rows;
    v1::Job job;
    damaged(Call(inference_, &v1::InferenceService::Stub::Tokenize, tokenize, &ids));
    damaged(Call(inference_, &v1::InferenceService::Stub::Detokenize, detokenize, &text));
    damaged(Call(inference_, &v1::InferenceService::Stub::RenderTemplate, render, &rendered));
    damaged(Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, preview, &rows));
    if (file.ends_with("config.json")) {
      damaged(Create(TinyJob(), &job));
    } else {
      damaged(ErrorOfPlan(TinyJob()), /*of_job=*/true);  // only the planning reads the files for tokenizing rows
    }
    model::WriteBytes(directory + file, whole);
  }
  // The restored model answers, and keeps what it has read.
  EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Tokenize, tokenize, &ids).ok());
  model::WriteBytes(directory + "config.json", "{");
  EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Tokenize, tokenize, &ids).ok());
}

// The altered file has the same size and is JSON: only a read of its contents reveals the change. The other datasets
// are still listed.
TEST_F(ErrorDetailsTest, DataLossOfADatasetWhoseDescriptionWasAltered) {
  UploadTexts();
  Upload("rows", kTinyTexts);
  const std::string path = directory_ + "/state/datasets/texts/meta.json", whole = model::ReadBytes(path);
  const std::map<std::string, std::string> changes = {{"\"rows\"", "\"rowz\""}, {"\"text\"", "\"tent\""}};
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(from);
    app_.reset();
    std::string altered = whole;
    ASSERT_NE(altered.find(from), std::string::npos) << altered;
    model::WriteBytes(path, altered.replace(altered.find(from), from.size(), to));
    StartApp();
    v1::ListDatasetsResponse datasets;
    const grpc::Status listed = Call(datasets_, &v1::DatasetService::Stub::ListDatasets, v1::ListDatasetsRequest(), &datasets);
    ASSERT_TRUE(listed.ok()) << listed.error_message();
    ASSERT_EQ(datasets.datasets_size(), 2);
    EXPECT_EQ(datasets.datasets(0).name(), "rows");
    EXPECT_EQ(datasets.datasets(0).rows(), 2);
    EXPECT_FALSE(datasets.datasets(0).damaged());
    EXPECT_EQ(datasets.datasets(1).name(), "texts");
    EXPECT_TRUE(datasets.datasets(1).damaged());
    const auto damaged = [&](const grpc::Status& status) {
      EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT"), "dataset"), "texts");
    };
    v1::GetDatasetRequest get;
    get.set_name("texts");
    v1::Dataset dataset;
    damaged(Call(datasets_, &v1::DatasetService::Stub::GetDataset, get, &dataset));
    v1::PreviewDatasetRequest preview;
    preview.set_dataset("texts");
    preview.set_model("tiny");
    v1::PreviewDatasetResponse rows;
    damaged(Call(datasets_, &v1::DatasetService::Stub::PreviewDataset, preview, &rows));
    if (to != "\"tent\"") continue;  // a job needs only the format
    v1::PlanJobRequest plan;
    *plan.mutable_spec() = TinyJob().spec();
    v1::PlanJobResponse planned;
    damaged(Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &planned));
  }
  v1::DeleteDatasetRequest remove;
  remove.set_name("texts");
  v1::DeleteDatasetResponse removed;
  EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, remove, &removed).ok());
}

TEST_F(ErrorDetailsTest, DataLossOfARecord) {
  ASSERT_TRUE(ConvertTiny("eight").has_response());
  FlipLastByte("eight/record.bin");
  v1::VerifyModelRequest verify;
  verify.set_name("eight");
  v1::VerifyModelResponse verified;
  Check(Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified), grpc::StatusCode::DATA_LOSS, "CORRUPT_ARTIFACT",
        /*of_operation=*/true);
}

// Whatever error a reader makes of an altered or missing file: it is not the caller's fault, and the record may still
// be equal.
TEST_F(ErrorDetailsTest, DataLossOfAnyFileIsFoundByVerify) {
  ASSERT_TRUE(ConvertTiny("eight").has_response());
  const std::string directory = directory_ + "/state/models/eight/";
  const std::string config = model::ReadBytes(directory + "config.json");
  std::string other = config;
  ASSERT_NE(other.find("\"llama\""), std::string::npos);
  other.replace(other.find("\"llama\""), 7, "\"emu99\"");
  const std::map<std::string, std::optional<std::string>> altered = {
      {"config.json", "{}"},         {"./config.json", other},      {"nibble.json", "{}"},
      {"record.bin", std::nullopt},  {"manifest.json", std::nullopt}, {"model.safetensors", std::nullopt},
      {"conversion.json", "{}"},     {"tokenizer.json", std::nullopt}};
  v1::VerifyModelRequest verify;
  verify.set_name("eight");
  v1::VerifyModelResponse verified;
  int failures = 0;
  for (const auto& [file, bytes] : altered) {
    SCOPED_TRACE(file);
    const std::string whole = model::ReadBytes(directory + file);
    std::filesystem::remove(directory + file);
    if (bytes.has_value()) model::WriteBytes(directory + file, *bytes);
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified);
    Check(status, grpc::StatusCode::DATA_LOSS, testing_support::ReasonOf(status), /*of_operation=*/true);
    EXPECT_EQ(VerifyFailures(), ++failures);
    model::WriteBytes(directory + file, whole);
  }
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified).ok());
  EXPECT_TRUE(verified.equal());
  EXPECT_EQ(VerifyFailures(), failures);
}

TEST_F(ErrorDetailsTest, DataLossCheckpointCorruptNamesBothDigests) {
  constexpr int kStep = 7;
  UploadTexts();
  v1::Job job;
  ASSERT_TRUE(Create(TinyJob(), &job).ok());
  const std::string target = testing_support::PlantCheckpoint(directory_, job.name(), kStep);
  ASSERT_FALSE(target.empty());
  v1::PublishCheckpointRequest publish;
  publish.set_checkpoint(StrCat(job.name(), "/", kStep));
  publish.set_name("m");
  v1::PublishCheckpointResponse published;
  model::WriteBytes(target + "/state.json", "[]");
  const grpc::Status status = Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &published);
  const auto details = Check(status, grpc::StatusCode::DATA_LOSS, "CHECKPOINT_CORRUPT", /*of_operation=*/true);
  EXPECT_EQ(Metadata(details, "checkpoint"), publish.checkpoint());
  EXPECT_EQ(Metadata(details, "file"), "state.json");
  EXPECT_EQ(Metadata(details, "expected"), base::Sha256Hex("{}"));
  EXPECT_EQ(Metadata(details, "found"), base::Sha256Hex("[]"));
}

TEST_F(ErrorDetailsTest, UnimplementedNamesTheMissingFeature) {
  v1::EmbedRequest embed;
  v1::EmbedResponse embedded;
  const auto method = Check(Call(inference_, &v1::InferenceService::Stub::Embed, embed, &embedded),
                            grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED");
  EXPECT_EQ(Metadata(method, "name"), "nibble.v1.InferenceService/Embed");
  v1::GenerateRequest request = Prompt("tiny", "a", 1);
  request.set_regex("a*");
  EXPECT_EQ(Metadata(Check(Generate(request), grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED"), "name"), "GenerateRequest.regex");
  v1::CreateJobRequest create = TinyJob();
  create.mutable_spec()->mutable_qlora()->set_double_quant(false);
  v1::Job job;
  const auto field = Check(Create(create, &job), grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED");
  EXPECT_EQ(Metadata(field, "name"), "QLoraMethod.double_quant");
}

// The list in docs/errors.md of errors without details: gRPC refuses these calls before our code runs.
TEST_F(ErrorDetailsTest, ErrorsFromGrpcItselfHaveNoDetails) {
  const grpc::Status unknown = testing_support::Ask(channel_, {.method = "nibble.v1.ModelService/NoSuch"}).status;
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(unknown.error_details().empty());
  const v1::GenerateRequest large = Prompt("tiny", std::string(5u << 20, 'a'), 1);
  const grpc::Status too_large = Generate(large);
  EXPECT_EQ(too_large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << too_large.error_message();
  EXPECT_TRUE(too_large.error_details().empty());
}

}  // namespace
}  // namespace nibble
