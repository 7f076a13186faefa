// Every string field of every method, filled with what an attacker would write (docs/faults.md, S4, S7, S11): nothing outside the
// import root and the state directory is touched, and no answer tells what only the server's operator may know.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "httplib.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/rpc/methods.h"
#include "server/rpc/status.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/support/exposition.h"

namespace nibble {
namespace {

using base::StrCat;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::AppTest;
using testing_support::RawAnswer;

constexpr char kCanary[] = "CANARY-7f3a";

// What an inode is asked: opened, read, written, renamed, removed, made; by name or by another hard link.
class Watcher {
 public:
  explicit Watcher(const std::vector<std::string>& paths) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    for (const std::string& path : paths) EXPECT_GE(inotify_add_watch(fd_, path.c_str(), IN_ALL_EVENTS), 0) << path;
  }
  ~Watcher() { close(fd_); }
  // Events since the last call.
  int Touches() {
    int events = 0;
    alignas(inotify_event) char buffer[1 << 14];
    for (ssize_t n = read(fd_, buffer, sizeof buffer); n > 0; n = read(fd_, buffer, sizeof buffer)) {
      for (ssize_t at = 0; at < n; ++events) {
        at += static_cast<ssize_t>(sizeof(inotify_event) + reinterpret_cast<const inotify_event*>(buffer + at)->len);
      }
    }
    return events;
  }

 private:
  int fd_;
};

class HostileRequestsTest : public AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    root_ = directory_ + "/root";
    outside_ = directory_ + "/outside";
    if (!std::filesystem::exists(root_)) Plant();
    options.import_root = root_;
    options.trainer_path = "/bin/false";
    return options;
  }
  // Ways out of the import root, and a secret behind each.
  void Plant() {
    namespace fs = std::filesystem;
    fs::create_directories(outside_);
    fs::create_directories(root_ + "/folder");
    std::ofstream(outside_ + "/secret.txt") << kCanary;
    std::ofstream(outside_ + "/config.json") << "{\"model_type\": \"" << kCanary << "\"}";
    fs::create_symlink("../outside/secret.txt", root_ + "/link");
    fs::create_symlink(outside_ + "/secret.txt", root_ + "/absolute_link");
    fs::create_symlink("../outside", root_ + "/linked_folder");
    fs::create_symlink(outside_ + "/config.json", root_ + "/folder/config.json");
    fs::create_hard_link(outside_ + "/secret.txt", root_ + "/hard");
    ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
    has_device_ = mknod((root_ + "/device").c_str(), S_IFCHR | 0600, makedev(1, 5)) == 0;  // /dev/zero; root alone may
    fs::create_directories(root_ + "/shards");
    std::ofstream(root_ + "/shards/config.json") << R"({"model_type": "llama"})";
    std::ofstream(root_ + "/shards/model.safetensors.index.json") << R"({"weight_map": {"w": "../../outside/secret.txt"}})";
    fs::copy(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16", root_ + "/hf_tied_bf16");
  }
  std::vector<std::string> Ways() {
    return {"../outside/secret.txt", "folder/../../outside/secret.txt", outside_ + "/secret.txt", outside_, "/etc/passwd", "/proc/self/environ",
            "link", "absolute_link", "linked_folder/secret.txt", "linked_folder", "folder", "hard", "fifo", "device", "..", "/", "//etc/passwd",
            std::string("x\0/../../outside/secret.txt", 27), "%2e%2e/outside/secret.txt", "..%2foutside%2fsecret.txt",
            "\xef\xbc\x8e\xef\xbc\x8e/outside/secret.txt", "..\xe2\x88\x95outside", "..\\outside\\secret.txt", "~root", "file:///etc/passwd"};
  }
  static std::vector<std::string> Injections() {
    return {"a\r\nb: c", "\"quoted\"", "\x1b[31mred\x1b[0m", std::string("nul\0nul", 7), "'; DROP TABLE jobs; --", "' OR '1'='1", "{{7*7}}",
            "{% for x in range(999999999) %}x{% endfor %}", "$(id)", "a=\"b\",c=\"d\"} 1\nevil 2", std::string(5000, 'x'), "%s%n%p", "\xf0\x9f\x94\xa5", " "};
  }

  RawAnswer Ask(const std::string& method, const Message& request, bool streams) {
    return testing_support::Ask(channel_, {.method = method,
                                           .request = request.SerializePartialAsString(),
                                           .max_reads = streams ? 8 : 1,
                                           .timeout = std::chrono::seconds(streams ? 1 : 10)});
  }

  using Path = std::vector<const FieldDescriptor*>;
  // Every string and bytes field of the message and of those in it.
  static void FindFields(const Descriptor* type, const Path& above, std::vector<Path>& found) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      Path path = above;
      path.push_back(field);
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        found.push_back(path);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && path.size() < 5) {
        FindFields(field->message_type(), path, found);
      }
    }
  }
  static void Set(Message* message, const Path& path, const std::string& text) {
    for (const FieldDescriptor* field : path) {
      const auto* reflection = message->GetReflection();
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
        message = field->is_repeated() ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field);
      } else if (field->is_repeated()) {
        reflection->AddString(message, field, text);
      } else {
        reflection->SetString(message, field, text);
      }
    }
  }
  // A request whose names are real, so that the spoilt one is what is looked at.
  static std::unique_ptr<Message> Plausible(const Descriptor* type) {
    std::unique_ptr<Message> message(MessageFactory::generated_factory()->GetPrototype(type)->New());
    std::vector<Path> fields;
    FindFields(type, {}, fields);
    const bool removes = type->name().rfind("Delete", 0) == 0;
    for (const Path& path : fields) {
      const std::string& name = path.back()->name();
      const bool in_one_of = path.back()->real_containing_oneof() != nullptr;
      if (removes || in_one_of || path.back()->is_repeated()) continue;
      if (name == "model" || name == "base_model") Set(message.get(), path, "tiny");
      if (name == "train_dataset" || name == "dataset") Set(message.get(), path, "texts");
      if (name == "name") Set(message.get(), path, type->full_name().find("Dataset") != std::string::npos ? "texts" : "tiny");
    }
    if (const auto* stopping = type->FindFieldByName("stopping"); stopping != nullptr) {
      static_cast<v1::Stopping*>(message->GetReflection()->MutableMessage(message.get(), stopping))->set_max_tokens(1);
    }
    return message;
  }

  // Fails when the text, or what is in the details, tells too much.
  static void ExpectClean(const std::string& text, const std::string& where) {
    static const std::regex leak(R"((^|[\s"'(=])/(tmp|root|home|var|usr|proc|dev|etc|work)/|/state/|0x[0-9a-fA-F]{6,}|SELECT .* FROM|INSERT INTO|[Ss]qlite|)"
                                 R"(no such (table|column)|syntax error near|\.(cc|h|rs):[0-9]+|std::|basic_string|json\.exception|panicked at)");
    std::smatch match;
    EXPECT_FALSE(std::regex_search(text, match, leak)) << where << ": \"" << match.str() << "\" in: " << text;
    EXPECT_THAT(text, Not(HasSubstr(kCanary))) << where;
  }
  void ExpectClean(const RawAnswer& answer, const std::string& where) {
    ExpectClean(answer.status.error_message(), where);
    EXPECT_THAT(answer.bytes, Not(HasSubstr(kCanary))) << where;
    google::rpc::Status details;
    if (answer.status.ok() || !details.ParseFromString(answer.status.error_details())) return;
    for (const auto& detail : details.details()) {
      if (google::rpc::ErrorInfo info; detail.UnpackTo(&info)) {
        for (const auto& [key, value] : info.metadata()) ExpectClean(value, where + " " + key);
      } else if (google::rpc::BadRequest bad; detail.UnpackTo(&bad)) {
        for (const auto& violation : bad.field_violations()) ExpectClean(violation.description(), where);
      } else if (google::rpc::ResourceInfo resource; detail.UnpackTo(&resource)) {
        ExpectClean(resource.resource_name(), where);
      }
    }
  }

  std::string root_, outside_;
  bool has_device_ = false;
};

TEST_F(HostileRequestsTest, S4S7S11EveryStringFieldOfEveryMethod) {
  Import("tiny");
  {
    grpc::ClientContext context;
    v1::LoadModelRequest request;
    request.set_name("tiny");
    v1::LoadModelResponse response;
    ASSERT_TRUE(models_->LoadModel(&context, request, &response).ok());
  }
  std::vector<std::string> texts = Ways();
  for (const std::string& text : Injections()) texts.push_back(text);
  Watcher watcher({outside_, outside_ + "/secret.txt", outside_ + "/config.json"});
  ::testing::internal::CaptureStderr();
  int asked = 0, refused = 0;
  for (const char* name : rpc::kServices) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const auto* method = service->method(i);
      std::vector<Path> fields;
      FindFields(method->input_type(), {}, fields);
      for (const Path& path : fields) {
        for (const std::string& text : texts) {
          const auto request = Plausible(method->input_type());
          Set(request.get(), path, text);
          const RawAnswer answer = Ask(StrCat(name, "/", method->name()), *request, method->client_streaming() || method->server_streaming());
          ExpectClean(answer, StrCat(method->name(), " ", path.back()->full_name()));
          ++asked;
          refused += answer.status.ok() ? 0 : 1;
        }
      }
      if (const int touches = watcher.Touches(); touches != 0) ADD_FAILURE() << method->full_name() << ": " << touches << " touches outside";
    }
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_GT(asked, 3000);
  EXPECT_GT(refused, asked / 2);
  // One JSON object a line, whatever was asked.
  std::istringstream lines(log);
  int num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) {
    EXPECT_TRUE(base::ParseJson(line).ok()) << line;
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
  }
  EXPECT_GE(num_lines, asked / 2);
  // The server is as it was: the model answers, the tables are there.
  grpc::ClientContext context;
  v1::ListJobsResponse jobs;
  EXPECT_TRUE(jobs_->ListJobs(&context, {}, &jobs).ok());
  v1::GenerateResponse generated;
  EXPECT_TRUE(Call(inference_, &v1::InferenceService::Stub::Generate, Prompt("tiny", "a", 1), &generated).ok());
  // The exposition is valid, whatever names came by.
  const auto scrape = httplib::Client("127.0.0.1", app_->http_port()).Get("/metrics");
  ASSERT_TRUE(scrape);
  EXPECT_EQ(scrape->body.find('\r'), std::string::npos);
  EXPECT_EQ(testing_support::ExpositionFault(scrape->body), "");
}

TEST_F(HostileRequestsTest, S4NoPathLeadsOutOfTheImportRoot) {
  Watcher watcher({outside_, outside_ + "/secret.txt", outside_ + "/config.json"});
  int number = 0;
  for (const std::string& way : Ways()) {
    if (way == "device" && !has_device_) continue;
    v1::ImportModelRequest request;
    request.set_name(StrCat("model", number++));
    request.set_server_path(way);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    ExpectClean({status, ""}, way);
    // What is an odd name, and no way out, is not there.
    if (status.error_code() != grpc::StatusCode::NOT_FOUND) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << way;
    }
  }
  for (const char* way : {"../outside/secret.txt", "link", "absolute_link", "linked_folder/secret.txt", "folder", "hard", "fifo", "/etc/passwd"}) {
    v1::ImportModelRequest request;
    request.set_name("model");
    request.set_server_path(way);
    google::longrunning::Operation operation;
    EXPECT_EQ(Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << way;
  }
  // A file of the model names another that lies outside.
  v1::ImportModelRequest request;
  request.set_name("shards");
  request.set_server_path("shards");
  google::longrunning::Operation operation;
  if (Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation).ok()) {
    const auto done = Wait(operation);
    ASSERT_TRUE(done.has_error());
    ExpectClean(done.error().message(), "shards");
  }
  EXPECT_EQ(watcher.Touches(), 0);
  std::ifstream(outside_ + "/secret.txt").get();
  EXPECT_GT(watcher.Touches(), 0);  // it does see
}

TEST_F(HostileRequestsTest, S4UploadedFilesHavePlainNames) {
  Watcher watcher({outside_});
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
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << way;  // a plain name: the stream ends too early
  }
  EXPECT_EQ(watcher.Touches(), 0);
}

TEST(WithoutInternalsTest, LeavesTheLastPartOfAPathAndNoAddress) {
  EXPECT_EQ(rpc::WithoutInternals("open /var/lib/nibble/models/m/x.json: No such file"), "open .../x.json: No such file");
  EXPECT_EQ(rpc::WithoutInternals("\"/a/b/\" and (/c/d) at 0x7ffdeadbeef0, path=/e/f"), "\".../b/\" and (.../d) at 0x..., path=.../f");
  EXPECT_EQ(rpc::WithoutInternals("tokens/s, and/or, 1/2/3, /tmp, a/b/c, 0x1f"), "tokens/s, and/or, 1/2/3, /tmp, a/b/c, 0x1f");
  EXPECT_EQ(rpc::WithoutInternals("/"), "/");
  EXPECT_EQ(rpc::WithoutInternals("///"), "///");
  EXPECT_EQ(rpc::WithoutInternals(""), "");
}

}  // namespace
}  // namespace nibble
