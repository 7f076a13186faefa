// Fills every string field of every method with hostile text (docs/faults.md, S4, S7, S11): nothing outside the import
// root and the state directory is touched, and no answer reveals what only the operator of the server may know.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/rpc/methods.h"
#include "server/rpc/status.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/message_texts.h"
#include "tests/server/rpc/outside_watcher.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/status_details.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/support/exposition.h"
#include "tests/support/leaks.h"

namespace nibble {
namespace {

using base::StrCat;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::Find;
using testing_support::FindLeaks;
using testing_support::FindTexts;
using testing_support::ForEachText;
using testing_support::NamesAFile;
using testing_support::OutsideWatcher;
using testing_support::RawAnswer;
using testing_support::SetText;
using testing_support::TextPath;

constexpr char kCanary[] = "CANARY-7f3a";

// A trainer that refuses every job, with a message that is only for the log.
constexpr char kTrainer[] = R"(#!/bin/sh
while [ "$1" != --job_dir ]; do shift; done
words="open $2/x.json at 0x7ffdeadbeef0 failed"
for type in warning log; do
  n=$((n + 1))
  printf '{"sequence": %d, "time": "2026-01-01T00:00:00Z", "type": "%s", "reason": "WORDS", "message": "%s"}\n' \
    $n $type "$words"
done > "$2/journal.jsonl"
printf '{"version": 1, "outcome": "failed", "code": "INVALID_ARGUMENT", "reason": "TRAINER_REFUSED", '\
'"message": "%s", "exit_code": 42}' "$words" > "$2/outcome.json"
exit 42
)";

class HostileRequestsTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    root_ = directory_ + "/root";
    outside_ = directory_ + "/outside";
    if (!std::filesystem::exists(root_)) Plant();
    options.import_root = root_;
    options.trainer_path = directory_ + "/trainer";
    return options;
  }
  // Makes ways out of the import root with a secret behind each, models that every import refuses, and a trainer that
  // reveals paths.
  void Plant() {
    namespace fs = std::filesystem;
    fs::create_directories(outside_);
    fs::create_directories(root_ + "/folder");
    std::ofstream(outside_ + "/secret.txt") << kCanary;
    std::ofstream(outside_ + "/config.json") << "{\"model_type\": \"" << kCanary << "\"}";
    fs::create_symlink("../outside/secret.txt", root_ + "/link");
    fs::create_symlink(outside_ + "/secret.txt", root_ + "/absolute_link");
    fs::create_symlink("../outside", root_ + "/linked_folder");
    fs::create_symlink("../outside/new", root_ + "/dangling");
    fs::create_symlink(outside_ + "/config.json", root_ + "/folder/config.json");
    fs::create_hard_link(outside_ + "/secret.txt", root_ + "/hard");
    ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
    has_device_ = mknod((root_ + "/device").c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0;  // /dev/zero; needs root
    fs::create_directories(root_ + "/shards");
    std::ofstream(root_ + "/shards/config.json") << R"({"model_type": "llama"})";
    std::ofstream(root_ + "/shards/model.safetensors.index.json")
        << R"({"weight_map": {"w": "../../outside/secret.txt"}})";
    for (const char* copy : {"hf_tied_bf16", "index", "tokenizer", "weights"}) {
      fs::copy(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16", root_ + "/" + copy);
    }
    fs::remove(root_ + "/index/model.safetensors");
    Write("index/model.safetensors.index.json", R"({"weight_map": {"w": "/etc/passwd"}})");
    Write("tokenizer/tokenizer.json", R"({"model": "/etc/passwd"})");
    Write("weights/model.safetensors", "/etc/passwd");
    Write("words.gguf", "GGUF/etc/passwd");
    fs::create_directories(root_ + "/adapter");
    Write("adapter/adapter_config.json", R"({"peft_type": "/etc/passwd"})");
    std::ofstream(directory_ + "/trainer") << kTrainer;
    fs::permissions(directory_ + "/trainer", fs::perms::owner_all);
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::remove(root_ + "/" + path);
    std::ofstream(root_ + "/" + path) << text;
  }
  std::vector<std::string> Ways() {
    return {"../outside/secret.txt", "folder/../../outside/secret.txt", outside_ + "/secret.txt", outside_,
            "/etc/passwd", "/proc/self/environ", "link", "absolute_link", "linked_folder/secret.txt", "linked_folder",
            "folder", "hard", "fifo", "device", "..", "/", "//etc/passwd",
            // Relative to the folders of models, uploads and attempts; and files that do not exist but could be made.
            "../../outside/secret.txt", "../../../outside/secret.txt", "../../../../../outside/secret.txt",
            "../outside/new", "../../outside/new", "../../../outside/new", "../../../../../outside/new", "../new",
            "../../new", outside_ + "/new", "linked_folder/new", "dangling",
            std::string("x\0/../../outside/secret.txt", 27), "%2e%2e/outside/secret.txt", "..%2foutside%2fsecret.txt",
            "\xef\xbc\x8e\xef\xbc\x8e/outside/secret.txt", "..\xe2\x88\x95outside", "..\\outside\\secret.txt", "~root",
            "file:///etc/passwd"};
  }
  static std::vector<std::string> Injections() {
    return {"a\r\nb: c",
            "\"quoted\"",
            "\x1b[31mred\x1b[0m",
            std::string("nul\0nul", 7),
            "'; DROP TABLE jobs; --",
            "' OR '1'='1",
            "{{7*7}}",
            "{% for x in range(999999999) %}x{% endfor %}",
            "$(id)",
            "a=\"b\",c=\"d\"} 1\nevil 2",
            std::string(5000, 'x'),
            "%s%n%p",
            "\xf0\x9f\x94\xa5",
            " "};
  }

  RawAnswer Ask(const std::string& method, const Message& request, bool streams) {
    return testing_support::Ask(channel_, {.method = method,
                                           .request = request.SerializePartialAsString(),
                                           .max_reads = streams ? 8 : 1,
                                           .timeout = std::chrono::seconds(20)});
  }

  // A request whose names exist, so that the server gets as far as the spoilt field.
  std::unique_ptr<Message> Plausible(const Descriptor* type) const {
    std::unique_ptr<Message> message(MessageFactory::generated_factory()->GetPrototype(type)->New());
    std::vector<TextPath> fields;
    FindTexts(type, {}, fields);
    const bool removes = type->name().rfind("Delete", 0) == 0;
    for (const TextPath& path : fields) {
      const std::string& name = path.back()->name();
      const bool in_one_of = path.back()->real_containing_oneof() != nullptr;
      if (removes || in_one_of || path.back()->is_repeated()) continue;
      if (name == "model" || name == "base_model") SetText(message.get(), path, "tiny");
      if (name == "train_dataset" || name == "dataset") SetText(message.get(), path, "texts");
      if (name == "name")
        SetText(message.get(), path, type->full_name().find("Dataset") != std::string::npos ? "texts" : "tiny");
    }
    Complete(message.get());
    return message;
  }
  // Sets what else the server needs to get as far as the spoilt field.
  void Complete(Message* message) const {
    const auto generate = [](v1::GenerateRequest* request) {
      request->set_model("tiny");
      request->set_text("a");
      request->mutable_stopping()->set_max_tokens(1);
    };
    const auto chat = [&](v1::GenerateRequest* request) {
      generate(request);
      auto* said = request->mutable_chat()->add_messages();
      said->set_role("user");
      said->set_content("a");
    };
    const auto train = [](v1::JobSpec* spec) {
      *spec = testing_support::TinyJob().spec();
      spec->clear_publish();  // each job gets its own name
    };
    if (auto* one = dynamic_cast<v1::GenerateRequest*>(message)) generate(one);
    if (auto* one = dynamic_cast<v1::GenerateStreamRequest*>(message)) generate(one->mutable_request());
    if (auto* one = dynamic_cast<v1::ChatRequest*>(message)) chat(one->mutable_request());
    if (auto* one = dynamic_cast<v1::ChatStreamRequest*>(message)) chat(one->mutable_request());
    if (auto* one = dynamic_cast<v1::ScoreRequest*>(message)) one->set_text("a");
    if (auto* one = dynamic_cast<v1::TokenizeRequest*>(message)) one->set_text("a");
    if (auto* one = dynamic_cast<v1::EmbedRequest*>(message)) one->add_texts("a");
    if (auto* one = dynamic_cast<v1::PlanJobRequest*>(message)) train(one->mutable_spec());
    if (auto* one = dynamic_cast<v1::CreateJobRequest*>(message)) train(one->mutable_spec());
    if (auto* one = dynamic_cast<v1::ImportModelRequest*>(message)) {
      one->set_name("imported");
      one->set_server_path("shards");  // fails, so that the name stays free
      one->clear_base_model();
    }
    if (auto* one = dynamic_cast<v1::ConvertModelRequest*>(message)) {
      one->set_name("converted");
      one->set_model("tiny");
      one->set_target(v1::MODEL_FORMAT_NF4);
      one->mutable_adapter_init()->set_method(v1::ADAPTER_INIT_METHOD_PISSA);
      one->mutable_adapter_init()->set_name(StrCat("adapter-", ++num_adapters_));
      one->mutable_adapter_init()->set_r(2);
    }
    if (auto* one = dynamic_cast<v1::ExportModelRequest*>(message)) one->set_format(v1::EXPORT_FORMAT_HF);
    if (auto* one = dynamic_cast<v1::PublishCheckpointRequest*>(message)) one->set_name("published");
    if (auto* one = dynamic_cast<v1::DownloadArtifactRequest*>(message)) one->set_artifact_id(artifact_);
  }

  static bool IsUnimplemented(const MethodDescriptor* method, const FieldDescriptor* field) {
    const auto is = [](const std::string& name) {
      return std::find(std::begin(rpc::kUnimplemented), std::end(rpc::kUnimplemented), name) !=
             std::end(rpc::kUnimplemented);
    };
    return is(StrCat(method->service()->full_name(), "/", method->name())) ||
           is(StrCat(field->containing_type()->name(), ".", field->name()));
  }
  // Expects a refusal for this field: it is not implemented, the name is invalid, or nothing has that name.
  static void ExpectRefused(const grpc::Status& status, const MethodDescriptor* method, const FieldDescriptor* field,
                            const std::string& where) {
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      EXPECT_TRUE(IsUnimplemented(method, field)) << where;
    } else if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) {
      const std::string named = FieldOf(status);
      EXPECT_EQ(named.substr(named.rfind('.') + 1), field->name()) << where << ": " << status.error_message();
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << where << ": " << status.error_message();
      const auto resource = Find<google::rpc::ResourceInfo>(testing_support::Details(status));
      if (!resource.has_value()) return;  // an error about a path has none
      for (const char* existing : {"tiny", "texts", "imported", "converted", "published"}) {
        EXPECT_NE(resource->resource_name(), existing) << where;
      }
    }
  }

  // Fails if the text, or one of the details, reveals too much.
  static void ExpectClean(const std::string& text, const std::string& where) {
    EXPECT_THAT(FindLeaks(text), IsEmpty()) << where << ": " << text;
    EXPECT_THAT(text, Not(HasSubstr(kCanary))) << where;
  }
  static void ExpectClean(const Message& message, const std::string& where) {
    ForEachText(message,
                [&](const std::string& text) { ExpectClean(text, StrCat(where, " ", message.GetTypeName())); });
  }
  static void ExpectClean(const RawAnswer& answer, const std::string& where) {
    ExpectClean(answer.status.error_message(), where);
    EXPECT_THAT(answer.bytes, Not(HasSubstr(kCanary))) << where;
    if (!answer.status.ok()) ExpectClean(testing_support::Details(answer.status), where);
  }
  // Begins imports that fail when they run, and waits for their ends; returns their number. Needs the model "tiny".
  int FailImports() {
    int begun = 0;
    for (const char* path : {"shards", "index", "tokenizer", "weights", "words.gguf", "adapter"}) {
      for (const char* base : {"", "tiny"}) {
        v1::ImportModelRequest request;
        request.set_name(StrCat("model", ++begun));
        request.set_server_path(path);
        if (*base != '\0') request.set_base_model(base);
        google::longrunning::Operation operation;
        const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
        EXPECT_TRUE(status.ok()) << path << ": " << status.error_message();
        if (status.ok()) {
          EXPECT_FALSE(Wait(operation).error().message().empty()) << path;
        }
      }
    }
    return begun;
  }
  // Checks every operation that is kept; returns the number of failed ones.
  int ExpectCleanOperations() {
    google::longrunning::ListOperationsRequest request;
    google::longrunning::ListOperationsResponse list;
    request.set_page_size(1000);
    int failed = 0;
    do {
      EXPECT_TRUE(Call(operations_, &google::longrunning::Operations::Stub::ListOperations, request, &list).ok());
      for (const auto& operation : list.operations()) {
        const auto done = Wait(operation);
        ExpectClean(done.error(), done.name());
        // The spec of a plan repeats the request.
        if (!done.response().Is<v1::PlanJobResponse>()) ExpectClean(done, done.name());
        failed += done.has_error() ? 1 : 0;
      }
      request.set_page_token(list.next_page_token());
    } while (!request.page_token().empty());
    return failed;
  }
  // Cancels the job whose message has these bytes, so that the queue does not fill. The job may have failed by now.
  void Cancel(const std::string& bytes) {
    v1::Job job;
    ASSERT_TRUE(job.ParseFromString(bytes));
    v1::CancelJobRequest request;
    request.set_name(job.name());
    const grpc::Status status = Call(jobs_, &v1::FineTuneService::Stub::CancelJob, request, &job);
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) << status.error_message();
    ExpectClean({status, ""}, "CancelJob");
  }
  // Checks that no request led to a new file; called after the server has ended.
  void ExpectNothingNew() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      EXPECT_NE(entry.path().filename(), "new") << entry.path();
    }
    std::set<std::string> there;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) there.insert(entry.path().filename());
    EXPECT_THAT(there, ElementsAre("outside", "root", "state", "trainer"));
  }

  // A loaded model, a dataset and an export, so that requests can name something.
  void Prepare() {
    Import("tiny");
    {
      v1::LoadModelRequest request;
      request.set_name("tiny");
      v1::LoadModelResponse response;
      ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::LoadModel, request, &response).ok());
    }
    Upload("texts", testing_support::kTinyTexts);
    {
      v1::ExportModelRequest request;
      request.set_model("tiny");
      request.set_format(v1::EXPORT_FORMAT_HF);
      google::longrunning::Operation operation;
      ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ExportModel, request, &operation).ok());
      v1::ExportModelResponse exported;
      ASSERT_TRUE(Wait(operation).response().UnpackTo(&exported));
      artifact_ = exported.artifact_id();
    }
  }
  static void ExpectJsonLines(const std::string& log, int at_least) {
    // One JSON object per line, whatever was asked.
    std::istringstream lines(log);
    int num_lines = 0;
    for (std::string line; std::getline(lines, line); ++num_lines) {
      EXPECT_TRUE(base::ParseJson(line).ok()) << line;
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
    }
    EXPECT_GE(num_lines, at_least);
  }
  // Expects that the model answers and that the tables exist; returns the number of jobs.
  int ExpectServerWorks() {
    v1::ListJobsRequest all;
    all.set_page_size(1000);
    v1::ListJobsResponse jobs;
    EXPECT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, all, &jobs).ok());
    for (const v1::Job& job : jobs.jobs()) {  // their specs repeat the requests
      ExpectClean(job.error(), job.name());
      ExpectClean(job.state_reason(), job.name());
    }
    v1::GenerateResponse generated;
    EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Generate, Prompt("tiny", "a", 1), &generated).ok());
    // The exposition is valid, whatever names were in the requests.
    const std::string scrape = Scrape();
    EXPECT_EQ(scrape.find('\r'), std::string::npos);
    EXPECT_EQ(testing_support::ExpositionFault(scrape), "");
    return jobs.jobs_size();
  }

  std::string root_, outside_;
  std::string artifact_;          // an export of "tiny"
  mutable int num_adapters_ = 0;  // in the adapter's name: a conversion that succeeds takes that name
  bool has_device_ = false;
};

// One service in each test, so that the tests can run side by side.
struct HostileService {
  const char* name;
  // Minimum numbers, which show that the test still works: of requests, and of requests whose text leads out.
  int requests, lead_out;
  int jobs = 0, failed_operations = 0;  // minimum numbers that the requests begin
};
void PrintTo(const HostileService& service, std::ostream* out) { *out << service.name; }

constexpr HostileService kHostileServices[] = {
    {"nibble.v1.DatasetService", 700, 150},
    {"nibble.v1.FineTuneService", 3000, 500, /*jobs=*/100},
    {"nibble.v1.ModelService", 1500, 450, /*jobs=*/0, /*failed_operations=*/50},
    {"nibble.v1.InferenceService", 2000, 200},
    {"nibble.v1.UploadService", 100, 40},
    {"google.longrunning.Operations", 250, 80},
};

class HostileServiceTest : public HostileRequestsTest, public ::testing::WithParamInterface<HostileService> {
 protected:
  // Asks the method once for each of its fields and each text.
  void AskWithHostileTexts(const MethodDescriptor* method) {
    const std::vector<std::string> ways = Ways();
    std::vector<std::string> texts = ways;
    for (const std::string& text : Injections()) texts.push_back(text);
    std::vector<TextPath> fields;
    FindTexts(method->input_type(), {}, fields);
    for (const TextPath& path : fields) {
      for (std::size_t at = 0; at < texts.size(); ++at) {
        const auto request = Plausible(method->input_type());
        SetText(request.get(), path, texts[at]);
        const RawAnswer answer = Ask(StrCat(method->service()->full_name(), "/", method->name()), *request,
                                     method->client_streaming() || method->server_streaming());
        const std::string where = StrCat(method->name(), " ", path.back()->full_name(), " ", texts[at].substr(0, 100));
        ExpectClean(answer, where);
        ++asked_;
        // "link" is a valid name for a model.
        const bool leads_out = path.back()->name() == "server_path" || !base::CheckName("name", texts[at]).ok();
        if (at < ways.size() && leads_out && NamesAFile(path.back())) {
          ExpectRefused(answer.status, method, path.back(), where);
          ++led_out_;
        }
        if (answer.status.ok() && method->name() == "CreateJob") Cancel(answer.bytes);
      }
    }
  }

  int asked_ = 0, led_out_ = 0;
};

TEST_P(HostileServiceTest, S4S7S11HostileTextInAnyFieldOfAnyMethodIsHarmless) {
  Prepare();
  ASSERT_NE(artifact_, "");
  OutsideWatcher watcher(directory_);
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(GetParam().name);
  ASSERT_NE(service, nullptr);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < service->method_count(); ++i) {
    AskWithHostileTexts(service->method(i));
    if (const int touches = watcher.Touches(); touches != 0)
      ADD_FAILURE() << service->method(i)->full_name() << ": " << touches << " touches outside";
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_GE(asked_, GetParam().requests);
  EXPECT_GE(led_out_, GetParam().lead_out);
  ExpectJsonLines(log, asked_ / 2);
  EXPECT_GE(ExpectServerWorks(), GetParam().jobs);
  EXPECT_GE(ExpectCleanOperations(), GetParam().failed_operations);
  app_.reset();
  EXPECT_EQ(watcher.Touches(), 0);
  ExpectNothingNew();
}
INSTANTIATE_TEST_SUITE_P(Services, HostileServiceTest, ::testing::ValuesIn(kHostileServices), [](const auto& info) {
  const std::string name = info.param.name;
  return name.substr(name.rfind('.') + 1);
});

TEST_F(HostileRequestsTest, EveryServiceWhoseRequestsHaveTextsIsTested) {
  std::vector<std::string> with_texts, tested;
  for (const char* name : rpc::kServices) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    std::vector<TextPath> fields;
    for (int i = 0; i < service->method_count(); ++i) FindTexts(service->method(i)->input_type(), {}, fields);
    if (!fields.empty()) with_texts.push_back(name);
  }
  for (const HostileService& service : kHostileServices) tested.push_back(service.name);
  EXPECT_EQ(tested, with_texts);
}

TEST_F(HostileRequestsTest, S4NoPathLeadsOutOfTheImportRoot) {
  OutsideWatcher watcher(directory_);
  int number = 0;
  for (const std::string& way : Ways()) {
    if (way == "device" && !has_device_) continue;
    v1::ImportModelRequest request;
    request.set_name(StrCat("model", number++));
    request.set_server_path(way);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    ExpectClean({status, ""}, way);
    // An odd name that does not lead out is not found.
    if (status.error_code() != grpc::StatusCode::NOT_FOUND) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << way;
    }
  }
  for (const char* way :
       {"../outside/secret.txt", "../../outside/secret.txt", "link", "absolute_link", "linked_folder/secret.txt",
        "folder", "hard", "fifo", "/etc/passwd", "../outside/new", "linked_folder/new", "dangling"}) {
    v1::ImportModelRequest request;
    request.set_name("model");
    request.set_server_path(way);
    google::longrunning::Operation operation;
    EXPECT_EQ(Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << way;
  }
  // A file of the model names another that lies outside.
  for (const char* model : {"shards", "index"}) {
    v1::ImportModelRequest request;
    request.set_name(model);
    request.set_server_path(model);
    google::longrunning::Operation operation;
    ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation).ok());
    EXPECT_EQ(Wait(operation).error().code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT)) << model;
  }
  EXPECT_EQ(ExpectCleanOperations(), 2);
  EXPECT_EQ(watcher.Touches(), 0);
  // The watcher does see accesses.
  std::ifstream(outside_ + "/secret.txt").get();
  EXPECT_GT(watcher.Touches(), 0);
  std::ofstream(directory_ + "/new").put('x');
  EXPECT_GT(watcher.Touches(), 0);
  std::filesystem::remove(directory_ + "/new");
  app_.reset();
  ExpectNothingNew();
}

TEST_F(HostileRequestsTest, S4UploadedFilesHavePlainNames) {
  OutsideWatcher watcher(directory_);
  for (const std::string& way : Ways()) {
    grpc::ClientContext context;
    v1::UploadModelResponse response;
    auto writer = models_->UploadModel(&context, &response);
    v1::UploadModelRequest message;
    message.mutable_header()->set_name("up");
    writer->Write(message);
    message.mutable_file()->set_path(way);
    message.mutable_file()->set_size_bytes(3);
    writer->Write(message);
    message.set_chunk("abc");
    writer->Write(message);
    writer->WritesDone();
    const grpc::Status status = writer->Finish();
    ExpectClean({status, ""}, way);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << way;  // also for a plain name, because its stream ends too early
  }
  app_.reset();
  EXPECT_EQ(watcher.Touches(), 0);
  ExpectNothingNew();
}

TEST_F(HostileRequestsTest, S7FailuresOfOperationsJobsAndEventsRevealNothing) {
  Import("tiny");
  Upload("texts", testing_support::kTinyTexts);
  const int begun = FailImports();
  EXPECT_EQ(ExpectCleanOperations(), begun);

  v1::Job job;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CreateJob, testing_support::TinyJob(), &job).ok());
  v1::WatchJobRequest watched;
  watched.set_name(job.name());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto stream = jobs_->WatchJob(&context, watched);
  const std::string redacted = "open .../x.json at 0x... failed";
  int warnings = 0, logs = 0, failures = 0;
  for (v1::JobEvent event; stream->Read(&event);) {
    ExpectClean(event, "WatchJob");
    warnings += event.warning().message() == redacted ? 1 : 0;
    logs += event.log().text() == redacted ? 1 : 0;
    failures += event.state().reason().message() == redacted ? 1 : 0;
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(logs, 1);
  EXPECT_EQ(failures, 1);

  v1::GetJobRequest asked;
  asked.set_name(job.name());
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::GetJob, asked, &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(job.error().message(), redacted);
  EXPECT_EQ(job.state_reason().message(), redacted);
  ExpectClean(job, "GetJob");
  v1::ListJobsResponse listed;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobs, v1::ListJobsRequest(), &listed).ok());
  EXPECT_EQ(listed.jobs_size(), 1);
  ExpectClean(listed, "ListJobs");
  v1::ListJobEventsRequest events;
  events.set_name(job.name());
  v1::ListJobEventsResponse happened;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::ListJobEvents, events, &happened).ok());
  EXPECT_GE(happened.events_size(), 5);
  ExpectClean(happened, "ListJobEvents");
}

}  // namespace
}  // namespace nibble
