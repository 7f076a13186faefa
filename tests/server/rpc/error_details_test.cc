// Checks reasons of docs/errors.md over the wire, as a client sees them. The document names the tests of reasons that
// have no case here or in data_loss_test.cc (coverage_test.cc checks that).
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
#include "tests/server/rpc/error_details_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/status_details.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/token_line.h"

namespace nibble {
namespace {

TEST_F(ErrorDetailsTest, FieldViolationNamesEveryWrongField) {
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
TEST_F(ErrorDetailsTest, TooManyStopsAreRefusedWithLimitAndNumber) {
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

TEST_F(ErrorDetailsTest, DatasetFormatErrorNamesTheLines) {
  const std::string rows = "{\"text\": \"a\"}\n{\"text\": 5}\nno row\n";
  v1::UploadDatasetHeader header;
  header.set_name("bad");
  header.set_format(v1::DATASET_FORMAT_TEXT);
  v1::Dataset dataset;
  EXPECT_EQ(Fields(Check(Upload(header, rows, &dataset), grpc::StatusCode::INVALID_ARGUMENT, "DATASET_FORMAT")),
            "line 2 line 3");
}

TEST_F(ErrorDetailsTest, DataWithoutTrainableTokensIsInvalidArgument) {
  std::string prompt;
  for (int i = 0; i < 64; ++i) prompt += "a b ";
  Upload("texts", "{\"prompt\": \"" + prompt + "\", \"completion\": \"c\"}\n");
  v1::CreateJobRequest request = TinyJob();
  request.mutable_spec()->mutable_data()->set_max_seq_len(8);
  const auto details = Check(ErrorOfPlan(request), grpc::StatusCode::INVALID_ARGUMENT, "NO_TRAINABLE_TOKENS");
  EXPECT_EQ(Fields(details), "train_dataset");
  EXPECT_EQ(Metadata(details, "fault"), "user");
}

TEST_F(ErrorDetailsTest, TooLongPromptNamesItsTokensAndTheMaximum) {
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
    model::WriteBytes(options.import_root + "/strict/chat_template.jinja",
                      "{{ raise_exception('roles must alternate') }}");
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
  ImportFrom("broken");
  v1::TokenizeRequest request;
  request.set_model("broken");
  request.set_text("a b");
  v1::TokenizeResponse response;
  const grpc::Status status = Call(inference_, &v1::InferenceService::Stub::Tokenize, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("chat template"));
}

TEST_F(TemplateErrorTest, TemplateErrorNamesItsField) {
  ImportFrom("strict");
  ImportFrom("bare");
  Upload("chats", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                  "\n");
  const grpc::Status refused = Chat("strict");
  EXPECT_EQ(Fields(Check(refused, grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat.messages");
  EXPECT_THAT(refused.error_message(), HasSubstr("roles must alternate"));
  EXPECT_EQ(Fields(Check(Chat("bare"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat_template");
  EXPECT_EQ(Fields(Check(Preview("strict"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "messages");
  EXPECT_EQ(Fields(Check(Preview("bare"), grpc::StatusCode::INVALID_ARGUMENT, "TEMPLATE_ERROR")), "chat_template");
}

TEST_F(ErrorDetailsTest, NotFoundNamesTheResource) {
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
  check(Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &published), "CHECKPOINT",
        "checkpoint job-none/5");
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

TEST_F(ErrorDetailsTest, AlreadyExistsNamesTheResource) {
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

TEST_F(ErrorDetailsTest, FailedPreconditionNamesItsSubject) {
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
  const auto in_use =
      check(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed), "MODEL_IN_USE", "tiny");
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
  const auto used = check(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, delete_dataset, &gone),
                          "DATASET_IN_USE", "texts");
  EXPECT_EQ(Metadata(used, "user"), "job " + job.name());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  v1::Job moved;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &moved).ok());
  // The table of states forbids the resume; a checkpoint needs a trainer.
  v1::ResumeJobRequest resume;
  resume.set_name(job.name());
  check(Call(jobs_, &v1::FineTuneService::Stub::ResumeJob, resume, &moved), "ILLEGAL_STATE", job.name());
  v1::CheckpointJobRequest checkpoint;
  checkpoint.set_name(job.name());
  check(Call(jobs_, &v1::FineTuneService::Stub::CheckpointJob, checkpoint, &moved), "ILLEGAL_STATE", job.name());
}

TEST_F(ErrorDetailsTest, CheckpointWithoutAnAdapterIsNotServable) {
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

// Folders in the format of transformers: "masters" holds the weights of a BitNet model, "ternary" packed codes. In the
// folders from "mute" on, something is missing or wrong.
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
    // A tensor's name may have 512 bytes; this one has 600.
    const std::string header =
        StrCat(R"({")", std::string(600, 'a'), R"(": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})");
    model::WriteBytes(add("hf_tied_bf16", "long") + "model.safetensors",
                      model::RawSafetensors(header, /*data_bytes=*/0));
    model::WriteBytes(add("hf_tied_bf16", "foreign") + "config.json",
                      R"({"architectures": ["OtherForCausalLM"], "model_type": "other"})");
    return options;
  }
};

TEST_F(ImportedErrorTest, FailedPreconditionNamesTheBitNetModel) {
  ImportFrom("masters");
  ImportFrom("ternary");
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

TEST_F(ImportedErrorTest, ModelFormatErrorNamesItsKind) {
  const std::map<std::string, std::string> kinds = {{"mute", "NO_TOKENIZER"},
                                                    {"cut", "MALFORMED_FILE"},
                                                    {"foreign", "UNSUPPORTED_MODEL"},
                                                    {"long", "MALFORMED_FILE"}};
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

TEST_F(ErrorDetailsTest, KvFullNamesNeedAndHave) {
  v1::GenerateRequest request = Prompt("tiny", "a b c", 240);
  request.mutable_sampling()->set_n(16);
  const auto details = Check(Generate(request), grpc::StatusCode::RESOURCE_EXHAUSTED, "KV_FULL");
  EXPECT_GT(std::stoi(Metadata(details, "need")), std::stoi(Metadata(details, "have")));
  EXPECT_EQ(Find<google::rpc::QuotaFailure>(details)->violations(0).subject(), "KV_FULL");
}

// No job may wait in the queue, and uploads may have only 3 small messages and 1000 bytes.
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

TEST_F(FullQueueTest, FullJobQueueSuggestsADelay) {
  UploadTexts();
  v1::Job job;
  const auto details = Check(Create(TinyJob(), &job), grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL");
  // No trainer runs from which the time could be estimated.
  EXPECT_EQ(Metadata(details, "retry_ms"), "60000");
  EXPECT_EQ(Find<google::rpc::RetryInfo>(details)->retry_delay().seconds(), 60);
}

TEST_F(FullQueueTest, TooManySmallMessagesAreResourceExhausted) {
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

// An upload whose header announces too many bytes is refused before its first byte.
TEST_F(FullQueueTest, TooLargeSizeInAHeaderIsResourceExhausted) {
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

TEST_F(SmallMemoryTest, JobAndModelWithoutMemoryAreRefusedWithTheirPlan) {
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
TEST_F(QuotaTest, RefusalOfTooManyPlansSuggestsADelay) {
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

TEST_F(QuotaTest, TenantQuotaLimitsTheJobsOfOnePrincipal) {
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

TEST_F(ErrorDetailsTest, OldEtagIsAbortedAndForeignPageTokenIsOutOfRange) {
  v1::DeleteModelRequest remove;
  remove.set_name("tiny");
  remove.set_etag("old");
  v1::DeleteModelResponse removed;
  Check(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed), grpc::StatusCode::ABORTED,
        "ETAG_MISMATCH");
  v1::ListModelsRequest list;
  list.set_page_token("not ours");
  v1::ListModelsResponse page;
  Check(Call(models_, &v1::ModelService::Stub::ListModels, list, &page), grpc::StatusCode::OUT_OF_RANGE, "PAGE_TOKEN");
}

// A client that cancels its own call gets no status from the server, so another call aborts the request here.
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

// A transport on which gRPC checks no credentials, as behind a proxy. The handlers' wrappers refuse the calls there.
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
  // NOLINTNEXTLINE(bugprone-parent-virtual-call): ErrorDetailsTest imports a model, which no token here permits.
  void SetUp() override { AppTest::SetUp(); }
  grpc::Status Ask(const std::string& method, const std::multimap<std::string, std::string>& metadata) {
    return testing_support::Ask(channel_, {.method = method, .metadata = metadata}).status;
  }
};

TEST_F(RefusedCallerTest, BadTokenIsUnauthenticatedAndMissingRoleIsPermissionDenied) {
  const std::string list = "nibble.v1.ModelService/ListModels", stream = "nibble.v1.FineTuneService/WatchJob",
                    upload = "nibble.v1.ModelService/UploadModel";
  for (const std::string& method : {list, stream, upload}) {
    Check(Ask(method, {}), grpc::StatusCode::UNAUTHENTICATED, "TOKEN_MISSING");
    Check(Ask(method, {{"authorization", "Bearer wrong"}}), grpc::StatusCode::UNAUTHENTICATED, "TOKEN_INVALID");
  }
  const auto role =
      Check(Ask(upload, {{"authorization", "Bearer token-viewer"}}), grpc::StatusCode::PERMISSION_DENIED, "ROLE");
  EXPECT_NE(Metadata(role, "needed"), "(none)");
}

TEST_F(ErrorDetailsTest, DrainingServerIsUnavailable) {
  v1::DrainRequest request;
  request.mutable_deadline()->set_seconds(5);
  v1::DrainResponse response;
  ASSERT_TRUE(Call(server_, &v1::ServerService::Stub::Drain, request, &response).ok());
  v1::ListModelsResponse models;
  const auto details = Check(Call(models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(), &models),
                             grpc::StatusCode::UNAVAILABLE, "DRAINING");
  EXPECT_GT(Find<google::rpc::RetryInfo>(details)->retry_delay().seconds(), 0);
}

}  // namespace
}  // namespace nibble
