// DATA_LOSS and UNIMPLEMENTED with their details over the wire; gRPC's own errors, which have none (docs/errors.md).
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

TEST_F(ErrorDetailsTest, DataLossOfAModelIsReportedWithTheRequestId) {
  FlipLastByte("tiny/model.safetensors");
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  v1::GenerateResponse response;
  const auto details = Check(inference_->Generate(&context, Prompt("tiny", "a", 1), &response),
                             grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT");
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
    EXPECT_EQ(Find<google::rpc::ErrorInfo>(done.error()).value_or(google::rpc::ErrorInfo()).reason(),
              "ARTIFACT_CORRUPT");
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
  EXPECT_EQ(Metadata(Check(status, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT", /*of_operation=*/true), "model"),
            "tiny");
  EXPECT_EQ(VerifyFailures(), 4);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/state/uploads"));
  for (const std::string name : {"eight", "adapter", "published"}) {
    EXPECT_FALSE(std::filesystem::exists(directory_ + "/state/models/" + name)) << name;
  }
}

// Calls to a server that found damage at its start, in the model "tiny" and in the dataset "texts".
class DamagedAtStartTest : public ErrorDetailsTest {
 protected:
  void ExpectCallsReportTheModel() {
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
  }
  void ExpectCallsReportTheDataset() {
    v1::GetDatasetRequest get_dataset;
    get_dataset.set_name("texts");
    v1::Dataset dataset;
    const grpc::Status no_data = Call(datasets_, &v1::DatasetService::Stub::GetDataset, get_dataset, &dataset);
    EXPECT_EQ(Metadata(Check(no_data, grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT"), "dataset"), "texts");
    v1::CreateJobRequest create = TinyJob();
    v1::Job job;
    create.mutable_spec()->set_train_dataset("rows");
    Check(Create(create, &job), grpc::StatusCode::DATA_LOSS, "ARTIFACT_CORRUPT");
  }
  void ExpectNamesAreTaken() {
    const auto taken = [&](const grpc::Status& status, const std::string& resource) {
      EXPECT_EQ(Resource(Check(status, grpc::StatusCode::ALREADY_EXISTS, "NAME_TAKEN")), resource);
    };
    v1::CreateJobRequest create = TinyJob();
    v1::Job job;
    create.mutable_spec()->set_train_dataset("rows");
    create.mutable_spec()->set_base_model("other");
    create.mutable_spec()->mutable_publish()->set_output_model("tiny");
    taken(Create(create, &job), "model tiny");
    google::longrunning::Operation operation;
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
    v1::Dataset dataset;
    taken(Upload(texts, kTinyTexts, &dataset), "dataset texts");
  }
  void ExpectListsShowTheDamage() {
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
  }
  void Delete() {
    v1::DeleteModelRequest remove;
    remove.set_name("tiny");
    v1::DeleteModelResponse removed;
    EXPECT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed).ok());
    v1::DeleteDatasetRequest remove_dataset;
    remove_dataset.set_name("texts");
    v1::DeleteDatasetResponse dataset_removed;
    EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, remove_dataset, &dataset_removed).ok());
  }
};

// After a restart, damage is still reported and counted, and the name stays taken until the model or dataset is
// deleted.
TEST_F(DamagedAtStartTest, DamageWhileNoServerRanIsReportedUntilDeletion) {
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
  ExpectCallsReportTheModel();
  ExpectCallsReportTheDataset();
  ExpectNamesAreTaken();
  ExpectListsShowTheDamage();

  model::WriteBytes(weights, whole);
  EXPECT_TRUE(Generate(Prompt("tiny", "a", 1)).ok()) << "the model was restored";
  restart_with("");
  Delete();
  Import("tiny");
  UploadTexts();
  EXPECT_TRUE(Generate(Prompt("tiny", "a", 1)).ok());
}

// A file that cannot be read is also damage for a call that only describes the model.
TEST_F(ErrorDetailsTest, ModelThatCannotBeDescribedIsDataLoss) {
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
TEST_F(ErrorDetailsTest, ModelWhoseTextFilesCannotBeReadIsDataLoss) {
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
  // "./config.json" is a second way to alter config.json.
  const std::map<std::string, std::string> altered = {
      {"config.json", "{"},
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
  // The restored model answers. The server keeps what it has read, so later damage does not change the answer.
  EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Tokenize, tokenize, &ids).ok());
  model::WriteBytes(directory + "config.json", "{");
  EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Tokenize, tokenize, &ids).ok());
}

// The altered file has the same size and is JSON: only a read of its contents reveals the change. The other datasets
// are still listed.
TEST_F(ErrorDetailsTest, DatasetWithAlteredDescriptionIsDataLoss) {
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
    const grpc::Status listed =
        Call(datasets_, &v1::DatasetService::Stub::ListDatasets, v1::ListDatasetsRequest(), &datasets);
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

TEST_F(ErrorDetailsTest, DamagedRecordIsDataLoss) {
  ASSERT_TRUE(ConvertTiny("eight").has_response());
  FlipLastByte("eight/record.bin");
  v1::VerifyModelRequest verify;
  verify.set_name("eight");
  v1::VerifyModelResponse verified;
  Check(Call(models_, &v1::ModelService::Stub::VerifyModel, verify, &verified), grpc::StatusCode::DATA_LOSS,
        "CORRUPT_ARTIFACT",
        /*of_operation=*/true);
}

// The readers of the files report different errors. All of them become DATA_LOSS, because the caller is not at fault. A
// damaged file is reported even if the logits still equal the record.
TEST_F(ErrorDetailsTest, DataLossOfAnyFileIsFoundByVerify) {
  ASSERT_TRUE(ConvertTiny("eight").has_response());
  const std::string directory = directory_ + "/state/models/eight/";
  const std::string config = model::ReadBytes(directory + "config.json");
  std::string other = config;
  ASSERT_NE(other.find("\"llama\""), std::string::npos);
  other.replace(other.find("\"llama\""), 7, "\"emu99\"");
  // "./config.json" is a second way to alter config.json.
  const std::map<std::string, std::optional<std::string>> altered = {
      {"config.json", "{}"},        {"./config.json", other},        {"nibble.json", "{}"},
      {"record.bin", std::nullopt}, {"manifest.json", std::nullopt}, {"model.safetensors", std::nullopt},
      {"conversion.json", "{}"},    {"tokenizer.json", std::nullopt}};
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

TEST_F(ErrorDetailsTest, CorruptCheckpointNamesBothDigests) {
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
  v1::SetResourcePolicyRequest policy;
  v1::ResourcePolicy set;
  const auto method = Check(Call(server_, &v1::ServerService::Stub::SetResourcePolicy, policy, &set),
                            grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED");
  EXPECT_EQ(Metadata(method, "name"), "nibble.v1.ServerService/SetResourcePolicy");
  EXPECT_EQ(
      Metadata(Check(Generate(Prompt("tiny@2", "a", 1)), grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED"), "name"),
      "GenerateRequest.model");
  v1::CreateJobRequest create = TinyJob();
  create.mutable_spec()->mutable_publish()->set_evaluate_int8(false);
  v1::Job job;
  const auto field = Check(Create(create, &job), grpc::StatusCode::UNIMPLEMENTED, "UNIMPLEMENTED");
  EXPECT_EQ(Metadata(field, "name"), "PublishPolicy.evaluate_int8 false");
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
