// Jobs of another tenant look absent (docs/faults.md, S2): every method gives the same error as for a job that does not
// exist.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "client/security.h"
#include "server/base/sha256.h"
#include "server/base/strings.h"
#include "server/rpc/methods.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/token_line.h"

namespace nibble {
namespace {

using base::StrCat;
using testing_support::AppTest;
using testing_support::TokenLine;

constexpr int kStep = 7;

// The field in which a method names a job or a checkpoint; "" if it names none. Every method is listed, so that each
// new one is considered. Models and datasets belong to all tenants; operations belong to one
// (S2OperationIsVisibleOnlyToItsTenant). S2JobCannotStartFromACheckpointOfAnotherTenant tests the checkpoint in a spec
// of CreateJob and PlanJob.
const std::vector<std::pair<std::string_view, std::string_view>>& JobFields() {
  static const auto* fields = new std::vector<std::pair<std::string_view, std::string_view>>{
      {"nibble.v1.DatasetService/UploadDataset", ""},
      {"nibble.v1.DatasetService/GetDataset", ""},
      {"nibble.v1.DatasetService/ListDatasets", ""},
      {"nibble.v1.DatasetService/DeleteDataset", ""},
      {"nibble.v1.DatasetService/PreviewDataset", ""},
      {"nibble.v1.DatasetService/DownloadDataset", ""},
      {"nibble.v1.FineTuneService/PlanJob", ""},
      {"nibble.v1.FineTuneService/CreateJob", ""},
      {"nibble.v1.FineTuneService/GetJob", "name"},
      {"nibble.v1.FineTuneService/ListJobs", ""},
      {"nibble.v1.FineTuneService/DeleteJob", "name"},
      {"nibble.v1.FineTuneService/WatchJob", "name"},
      {"nibble.v1.FineTuneService/WatchJobLogs", "name"},
      {"nibble.v1.FineTuneService/ListJobEvents", "name"},
      {"nibble.v1.FineTuneService/ListCheckpoints", "name"},
      {"nibble.v1.FineTuneService/CancelJob", "name"},
      {"nibble.v1.FineTuneService/PauseJob", "name"},
      {"nibble.v1.FineTuneService/ResumeJob", "name"},
      {"nibble.v1.FineTuneService/CheckpointJob", "name"},
      {"nibble.v1.ModelService/UploadModel", ""},
      {"nibble.v1.ModelService/ListModels", ""},
      {"nibble.v1.ModelService/GetModel", ""},
      {"nibble.v1.ModelService/DeleteModel", ""},
      {"nibble.v1.ModelService/ImportModel", ""},
      {"nibble.v1.ModelService/ConvertModel", ""},
      {"nibble.v1.ModelService/ExportModel", ""},
      {"nibble.v1.ModelService/DownloadArtifact", ""},
      {"nibble.v1.ModelService/LoadModel", ""},
      {"nibble.v1.ModelService/UnloadModel", ""},
      {"nibble.v1.ModelService/PublishCheckpoint", "checkpoint"},
      {"nibble.v1.ModelService/VerifyModel", ""},
      {"nibble.v1.UploadService/GetUpload", ""},
      {"nibble.v1.UploadService/ListUploads", ""},
      {"nibble.v1.UploadService/CancelUpload", ""},
      {"nibble.v1.InferenceService/Generate", ""},
      {"nibble.v1.InferenceService/GenerateStream", ""},
      {"nibble.v1.InferenceService/Chat", ""},
      {"nibble.v1.InferenceService/ChatStream", ""},
      {"nibble.v1.InferenceService/Score", ""},
      {"nibble.v1.InferenceService/ScoreStream", ""},
      {"nibble.v1.InferenceService/Tokenize", ""},
      {"nibble.v1.InferenceService/Detokenize", ""},
      {"nibble.v1.InferenceService/RenderTemplate", ""},
      {"nibble.v1.InferenceService/GetTokenizerConfig", ""},
      {"nibble.v1.InferenceService/Embed", ""},
      {"nibble.v1.InferenceService/Abort", ""},
      {"nibble.v1.ServerService/GetServerInfo", ""},
      {"nibble.v1.ServerService/GetLoad", ""},
      {"nibble.v1.ServerService/WatchLoad", ""},
      {"nibble.v1.ServerService/Drain", ""},
      {"nibble.v1.ServerService/SetResourcePolicy", ""},
      {"google.longrunning.Operations/ListOperations", ""},
      {"google.longrunning.Operations/GetOperation", ""},
      {"google.longrunning.Operations/DeleteOperation", ""},
      {"google.longrunning.Operations/CancelOperation", ""},
      {"google.longrunning.Operations/WaitOperation", ""},
  };
  return *fields;
}

// Two tenants on one server, and an admin without a tenant.
class TenantTest : public AppTest {
 protected:
  AppOptions Options() override {
    std::ofstream(directory_ + "/tokens")
        << TokenLine("red", "train", R"(, "tenant": "red")") << TokenLine("blue", "train", R"(, "tenant": "blue")")
        << TokenLine("admin", "admin") << CiLine("red") << CiLine("blue");
    AppOptions options = AppTest::Options();
    options.security.token_file = directory_ + "/tokens";
    options.trainer_path = "/bin/false";  // starts, fails, is retried
    return options;
  }
  // The principal "ci" of a tenant; its token is "token-ci-TENANT".
  static std::string CiLine(const std::string& tenant) {
    return StrCat(R"({"name": "ci", "role": "train", "tenant": ")", tenant, R"(", "token_sha256": ")",
                  base::Sha256Hex("token-ci-" + tenant), "\"}\n");
  }
  void As(const std::string& name) {
    client::Security security;
    security.token = "token-" + name;
    Use(client::MakeChannel(StrCat("127.0.0.1:", app_->grpc_port()), security, {}));
  }
  v1::Job CreateJob(const std::string& output) {
    v1::CreateJobRequest request;
    request.set_request_id("8b7a3d1e-0000-4000-8000-000000000001");
    request.mutable_spec()->set_base_model("tiny");
    request.mutable_spec()->set_train_dataset("texts");
    request.mutable_spec()->mutable_qlora()->set_r(4);
    request.mutable_spec()->mutable_run()->set_max_steps(2);
    request.mutable_spec()->mutable_publish()->set_output_model(output);
    v1::Job job;
    const grpc::Status status = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  // Calls every method that names a job, or a checkpoint of one, unary or streaming.
  std::map<std::string, grpc::Status> AskAbout(const std::string& job) {
    std::map<std::string, grpc::Status> answers;
    for (const auto& asked : JobFields()) {
      const auto& method = asked.first;  // clang 14 does not let a lambda use a structured binding
      const auto& field = asked.second;
      if (field.empty()) continue;
      const std::string path(method.substr(0, method.find('/')));
      const auto* described =
          google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(path)->FindMethodByName(
              std::string(method.substr(path.size() + 1)));
      const auto* prototype =
          google::protobuf::MessageFactory::generated_factory()->GetPrototype(described->input_type());
      const std::unique_ptr<google::protobuf::Message> request(prototype->New());
      const auto set = [&](const std::string& name, const std::string& value) {
        const auto* found = described->input_type()->FindFieldByName(name);
        ASSERT_NE(found, nullptr) << method << ": " << name;
        request->GetReflection()->SetString(request.get(), found, value);
      };
      if (field == "checkpoint") {
        set("checkpoint", StrCat(job, "/", kStep));
        set("name", "published");
      } else {
        set(std::string(field), job);
      }
      answers[std::string(method)] =
          testing_support::Ask(channel_,
                               {.method = std::string(method), .request = request->SerializeAsString(), .max_reads = 1})
              .status;
    }
    return answers;
  }
};

TEST_F(TenantTest, S2TheTableNamesEveryMethod) {
  std::set<std::string> methods, table;
  for (const auto& [method, field] : JobFields()) EXPECT_TRUE(table.insert(std::string(method)).second) << method;
  for (const char* name : rpc::kServices) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) methods.insert(StrCat(name, "/", service->method(i)->name()));
  }
  EXPECT_EQ(table, methods);
}

TEST_F(TenantTest, S2JobOfAnotherTenantLooksAbsent) {
  As("red");
  Import("tiny");
  Upload("texts", "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n");
  const std::string job = CreateJob("red-model").name();
  ASSERT_FALSE(testing_support::PlantCheckpoint(directory_, job, kStep).empty());
  // Its own tenant, and a principal without a tenant, see it.
  for (const char* who : {"red", "admin"}) {
    As(who);
    v1::GetJobRequest request;
    request.set_name(job);
    v1::Job got;
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::GetJob, request, &got).ok()) << who;
    v1::ListJobsResponse list;
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, {}, &list).ok());
    EXPECT_EQ(list.jobs_size(), 1) << who;
    v1::PublishCheckpointRequest publish;
    publish.set_checkpoint(StrCat(job, "/", kStep));
    publish.set_name("published");
    v1::PublishCheckpointResponse model;
    const grpc::Status found = Call(models_, &v1::ModelService::Stub::PublishCheckpoint, publish, &model);
    EXPECT_FALSE(found.ok());
    // The checkpoint is found, but has no tensors.
    EXPECT_NE(testing_support::ReasonOf(found), "CHECKPOINT") << who << ": " << found.error_message();
  }
  As("blue");
  const std::string absent = "job-" + std::string(job.size() - 4, 'z');
  auto foreign = AskAbout(job), missing = AskAbout(absent);
  ASSERT_GE(foreign.size(), 10u);
  for (const auto& [method, status] : foreign) {
    const grpc::Status& other = missing[method];
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << method;
    EXPECT_EQ(testing_support::ReasonOf(status), method.ends_with("/PublishCheckpoint") ? "CHECKPOINT" : "JOB")
        << method;
    std::string text = status.error_message();
    for (std::size_t at = text.find(job); at != std::string::npos; at = text.find(job))
      text.replace(at, job.size(), absent);
    EXPECT_EQ(text, other.error_message()) << method;
  }
  v1::ListJobsResponse list;
  EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
  EXPECT_EQ(list.next_page_token(), "");
  // The same request id of another tenant is another request.
  const std::string own = CreateJob("blue-model").name();
  EXPECT_NE(own, job);
  As("red");
  EXPECT_EQ(CreateJob("red-model").name(), job);
}

// Objects that a job of red holds cannot be deleted or taken; the refusal does not tell blue which job that is.
TEST_F(TenantTest, S2ARefusalNamesNoJobOfAnotherTenant) {
  As("red");
  Import("tiny");
  Upload("texts", "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n");
  const std::string job = CreateJob("red-model").name();
  const auto refusals = [&] {
    std::map<std::string, grpc::Status> refused;
    v1::DeleteModelRequest model;
    model.set_name("tiny");
    v1::DeleteModelResponse no_model;
    refused["MODEL_IN_USE"] = Call(models_, &v1::ModelService::Stub::DeleteModel, model, &no_model);
    v1::DeleteDatasetRequest dataset;
    dataset.set_name("texts");
    v1::DeleteDatasetResponse no_dataset;
    refused["DATASET_IN_USE"] = Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, dataset, &no_dataset);
    v1::CreateJobRequest create;
    create.mutable_spec()->set_base_model("tiny");
    create.mutable_spec()->set_train_dataset("texts");
    create.mutable_spec()->mutable_qlora()->set_r(4);
    create.mutable_spec()->mutable_run()->set_max_steps(2);
    create.mutable_spec()->mutable_publish()->set_output_model("red-model");
    v1::Job created;
    refused["NAME_TAKEN"] = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, create, &created);
    return refused;
  };
  for (const char* who : {"red", "admin"}) {
    As(who);
    for (const auto& [reason, status] : refusals()) {
      EXPECT_EQ(testing_support::ReasonOf(status), reason) << who << ": " << status.error_message();
      EXPECT_NE(status.error_message().find(job), std::string::npos) << who << ": " << status.error_message();
    }
  }
  As("blue");
  for (const auto& [reason, status] : refusals()) {
    EXPECT_EQ(testing_support::ReasonOf(status), reason) << status.error_message();
    EXPECT_NE(status.error_message().find("a job"), std::string::npos) << status.error_message();
    EXPECT_EQ(status.error_message().find(job), std::string::npos) << status.error_message();
    EXPECT_EQ(status.error_details().find(job), std::string::npos) << reason << ": in its metadata";
  }
  v1::ImportModelRequest import;
  import.set_server_path("hf_tied_bf16");
  import.set_name("red-model");
  v1::ConvertModelRequest convert;
  convert.set_model("tiny");
  convert.set_name("red-model");
  convert.set_target(v1::MODEL_FORMAT_INT8);
  google::longrunning::Operation operation;
  for (const grpc::Status& status : {Call(models_, &v1::ModelService::Stub::ImportModel, import, &operation),
                                     Call(models_, &v1::ModelService::Stub::ConvertModel, convert, &operation)}) {
    EXPECT_EQ(testing_support::ReasonOf(status), "NAME_TAKEN") << status.error_message();
    EXPECT_EQ(status.error_message().find(job), std::string::npos) << status.error_message();
    EXPECT_EQ(status.error_details().find(job), std::string::npos) << status.error_message();
  }
}

TEST_F(TenantTest, S2OneNameInTwoTenantsIsTwoPrincipals) {
  As("ci-red");
  Import("tiny");
  Upload("texts", "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n");
  const std::string red = CreateJob("").name();
  As("ci-blue");
  // The same id, once with the same body and once with another: neither call answers with red's job, nor reveals it.
  const v1::Job blue = CreateJob("");
  EXPECT_NE(blue.name(), red);
  v1::GetJobRequest get;
  get.set_name(red);
  v1::Job job;
  const grpc::Status unseen = Call(jobs_, &v1::FineTuneService::Stub::GetJob, get, &job);
  EXPECT_EQ(unseen.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CreateJob("").name(), blue.name());
  v1::CreateJobRequest another;
  another.set_request_id("8b7a3d1e-0000-4000-8000-000000000001");
  another.mutable_spec()->set_base_model("tiny");
  another.mutable_spec()->set_train_dataset("texts");
  another.mutable_spec()->mutable_qlora()->set_r(8);
  const grpc::Status conflict = Call(jobs_, &v1::FineTuneService::Stub::CreateJob, another, &job);
  EXPECT_EQ(testing_support::ReasonOf(conflict), "IDEMPOTENCY_CONFLICT");
  EXPECT_NE(conflict.error_message().find(blue.name()), std::string::npos) << conflict.error_message();
  EXPECT_EQ(conflict.error_message().find(red), std::string::npos) << conflict.error_message();
  As("ci-red");
  EXPECT_EQ(CreateJob("").name(), red);
}

TEST_F(TenantTest, S2JobCannotStartFromACheckpointOfAnotherTenant) {
  As("red");
  Import("tiny");
  Upload("texts", "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n");
  const v1::Job source = CreateJob("red-model");
  ASSERT_FALSE(testing_support::PlantCheckpoint(directory_, source.name(), kStep).empty());
  const auto start = [&](const std::string& job, bool resume) {
    v1::CreateJobRequest create;
    *create.mutable_spec() = source.spec();
    create.mutable_spec()->clear_runtime();
    create.mutable_spec()->mutable_run()->set_max_steps(kStep + 1);
    create.mutable_spec()->mutable_publish()->set_output_model("next");
    const std::string name = StrCat(job, "/", kStep);
    if (resume) {
      create.mutable_spec()->set_resume_from(name);
    } else {
      create.mutable_spec()->set_warm_start_from(name);
    }
    v1::Job made;
    v1::PlanJobRequest plan;
    *plan.mutable_spec() = create.spec();
    google::longrunning::Operation operation;
    return std::pair(Call(jobs_, &v1::FineTuneService::Stub::CreateJob, create, &made),
                     Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &operation));
  };
  for (const bool resume : {true, false}) {
    As("blue");
    const auto [created, planned] = start(source.name(), resume);
    const auto [none_created, none_planned] = start("job-nothing", resume);
    for (const grpc::Status& status : {created, planned, none_created, none_planned}) {
      EXPECT_EQ(testing_support::ReasonOf(status), "CHECKPOINT") << status.error_message();
    }
    const auto with_same_name = [&](std::string message) {
      return message.replace(message.find(source.name()), source.name().size(), "job-nothing");
    };
    EXPECT_EQ(with_same_name(created.error_message()), none_created.error_message());
    As("red");
    EXPECT_TRUE(start(source.name(), resume).second.ok()) << start(source.name(), resume).second.error_message();
  }
}

// A plan reveals the spec of a job, and with it the datasets and models of a tenant.
TEST_F(TenantTest, S2OperationsOfAnotherTenantLookAbsent) {
  As("red");
  Import("tiny");
  Upload("texts", "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n");
  v1::PlanJobRequest plan;
  plan.mutable_spec()->set_base_model("tiny");
  plan.mutable_spec()->set_train_dataset("texts");
  plan.mutable_spec()->mutable_qlora()->set_r(4);
  google::longrunning::Operation operation;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::PlanJob, plan, &operation).ok());
  EXPECT_TRUE(Wait(operation).has_response());
  using Operations = google::longrunning::Operations::Stub;
  const auto get = [&] {
    google::longrunning::GetOperationRequest request;
    request.set_name(operation.name());
    google::longrunning::Operation got;
    return Call(operations_, &Operations::GetOperation, request, &got);
  };
  const auto list = [&] {
    google::longrunning::ListOperationsResponse page;
    EXPECT_TRUE(
        Call(operations_, &Operations::ListOperations, google::longrunning::ListOperationsRequest(), &page).ok());
    return page.operations_size();
  };
  const auto refused = [&](const grpc::Status& status) { EXPECT_EQ(testing_support::ReasonOf(status), "OPERATION"); };
  EXPECT_TRUE(get().ok());
  EXPECT_EQ(list(), 2) << "the import and the plan";
  As("blue");
  refused(get());
  EXPECT_EQ(list(), 0);
  google::protobuf::Empty none;
  google::longrunning::WaitOperationRequest wait;
  wait.set_name(operation.name());
  google::longrunning::Operation got;
  refused(Call(operations_, &Operations::WaitOperation, wait, &got));
  google::longrunning::CancelOperationRequest cancel;
  cancel.set_name(operation.name());
  refused(Call(operations_, &Operations::CancelOperation, cancel, &none));
  google::longrunning::DeleteOperationRequest remove;
  remove.set_name(operation.name());
  refused(Call(operations_, &Operations::DeleteOperation, remove, &none));
  As("admin");
  EXPECT_TRUE(get().ok());
  EXPECT_EQ(list(), 2);
}

// If tenants shared request ids, one tenant could guess an id and learn what another tenant did under it, or use the id
// before the other tenant does.
TEST_F(TenantTest, C9RequestIdsOfOperationsBelongToOneTenant) {
  const auto import = [&](const std::string& name) {
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name(name);
    request.set_request_id("8b7a3d1e-0000-4000-8000-000000000002");
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    EXPECT_TRUE(status.ok()) << name << ": " << status.error_message();
    return status.ok() ? Wait(operation) : operation;
  };
  As("ci-red");
  const auto red = import("of-red");
  EXPECT_TRUE(red.has_response());
  As("ci-blue");
  const auto blue = import("of-blue");
  EXPECT_TRUE(blue.has_response());
  EXPECT_NE(blue.name(), red.name());
  EXPECT_EQ(import("of-blue").name(), blue.name());
  As("red");
  EXPECT_NE(import("of-another").name(), red.name()) << "the same tenant, another principal";
  As("ci-red");
  EXPECT_EQ(import("of-red").name(), red.name());
}

}  // namespace
}  // namespace nibble
