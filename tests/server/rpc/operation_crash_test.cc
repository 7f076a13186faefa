// Operations that a crash of the server interrupts (docs/faults.md, C8). From some point on, the disk accepts no
// change, so it holds what a crash at that point would leave. At the next start, the server determines how the work
// ended.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "server/base/hooked_files.h"
#include "server/base/json.h"
#include "server/base/strings.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/tiny_job.h"
#include "tests/server/rpc/written_checkpoint.h"

namespace nibble {
namespace {

using base::StrCat;
using testing_support::AppTest;
using testing_support::ReasonOf;
namespace longrunning = google::longrunning;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Lets `left` changes of models/ and operations/ reach the disk, then fails all others. Thread-safe.
class Standstill {
 public:
  explicit Standstill(std::atomic<std::int64_t>& left) : left_(left) {}

  template <typename Work>
  auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
    const bool counts =
        path.find("/state/models") != std::string::npos || path.find("/state/operations") != std::string::npos;
    if (operation != "read" && operation != "close" && counts && left_.fetch_sub(1) <= 0) {
      return absl::InternalError("injected: the disk stands still");
    }
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    return Around("append", path, [&] { return write(bytes); });
  }

 private:
  std::atomic<std::int64_t>& left_;
};

class OperationCrashTest : public AppTest {
 protected:
  using Begin = std::function<grpc::Status(const std::string& name, longrunning::Operation*)>;

  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.files = &files_;
    options.trainer_path = "/bin/false";  // a job only needs to be created
    return options;
  }
  // Runs the operation once undisturbed, then `last` times cut off: each time, another one of its last changes of the
  // disk is the first that fails. Returns how often the next start of the server found the model. `begin` must use the
  // name of the model as the request id.
  int CutOff(const std::string& prefix, const Begin& begin, std::int64_t last = kLast) {
    longrunning::Operation operation;
    left_ = kNever;
    EXPECT_TRUE(begin(prefix + "-whole", &operation).ok());
    const longrunning::Operation whole = Wait(operation);
    EXPECT_TRUE(whole.has_response()) << whole.error().message();
    const std::int64_t changes = kNever - left_;
    EXPECT_GT(changes, last);
    int recovered = 0;
    for (std::int64_t k = changes - last; k < changes; ++k) recovered += Crash(StrCat(prefix, "-", k), k, begin);
    return recovered;
  }

  // Number of last changes that CutOff tests. The manifest, the rename, and the record of the operation's end are among
  // them.
  static constexpr std::int64_t kLast = 14;

 private:
  bool Crash(const std::string& name, std::int64_t changes, const Begin& begin) {
    SCOPED_TRACE(name);
    left_ = changes;
    longrunning::Operation begun;
    EXPECT_TRUE(begin(name, &begun).ok());
    const longrunning::Operation cut = Wait(begun);
    app_.reset();
    left_ = kNever;
    StartApp();
    longrunning::GetOperationRequest get;
    get.set_name(begun.name());
    longrunning::Operation after;
    EXPECT_TRUE(Call(operations_, &longrunning::Operations::Stub::GetOperation, get, &after).ok());
    EXPECT_TRUE(after.done());
    v1::GetModelRequest wanted;
    wanted.set_name(name);
    v1::Model model;
    const bool made = Call(models_, &v1::ModelService::Stub::GetModel, wanted, &model).ok();
    EXPECT_EQ(after.has_response(), made) << after.error().message();
    if (!made) {
      EXPECT_EQ(ReasonOf(after.error()), "SERVER_RESTARTED");
    } else if (cut.has_response()) {
      EXPECT_EQ(after.response().SerializeAsString(), cut.response().SerializeAsString());
    }
    // The repeated request makes nothing.
    longrunning::Operation again;
    EXPECT_TRUE(begin(name, &again).ok());
    EXPECT_EQ(again.SerializeAsString(), after.SerializeAsString());
    return made;
  }

  std::atomic<std::int64_t> left_{kNever};
  base::HookedFiles<Standstill> files_{base::RealFileSystem(), left_};
};

TEST_F(OperationCrashTest, C8ImportIsDoneIfItsModelWasPublishedBeforeTheCrash) {
  const int recovered = CutOff("import", [this](const std::string& name, longrunning::Operation* operation) {
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name(name);
    request.set_request_id(name);
    return Call(models_, &v1::ModelService::Stub::ImportModel, request, operation);
  });
  EXPECT_GT(recovered, 2);
  EXPECT_LT(recovered, kLast) << "some were interrupted before the rename";
}

TEST_F(OperationCrashTest, C8ConversionIsDoneIfItsModelWasPublishedBeforeTheCrash) {
  Import("base");
  const int recovered = CutOff("convert", [this](const std::string& name, longrunning::Operation* operation) {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name(name);
    request.set_target(v1::MODEL_FORMAT_INT8);
    request.set_request_id(name);
    return Call(models_, &v1::ModelService::Stub::ConvertModel, request, operation);
  });
  EXPECT_GT(recovered, 2);
  EXPECT_LT(recovered, kLast) << "some were interrupted before the rename";
}

// Both models are published, or none: an adapter without a base is removed.
TEST_F(OperationCrashTest, C8ConversionWithAnAdapterMakesBothModelsOrNone) {
  constexpr std::int64_t kLastOfBoth = 26;
  Import("base");
  const auto convert = [this](const std::string& name, longrunning::Operation* operation) {
    v1::ConvertModelRequest request;
    request.set_model("base");
    request.set_name(name);
    request.set_target(v1::MODEL_FORMAT_NF4);
    request.mutable_adapter_init()->set_method(v1::ADAPTER_INIT_METHOD_PISSA);
    request.mutable_adapter_init()->set_name(name + "-adapter");
    request.mutable_adapter_init()->set_r(2);
    request.set_request_id(name);
    return Call(models_, &v1::ModelService::Stub::ConvertModel, request, operation);
  };
  const int recovered = CutOff("both", convert, kLastOfBoth);
  EXPECT_GT(recovered, 2);
  EXPECT_LT(recovered, kLastOfBoth) << "some were interrupted before the rename";
  v1::ListModelsResponse all;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ListModels, v1::ListModelsRequest(), &all).ok());
  std::set<std::string> names;
  for (const v1::Model& model : all.models()) names.insert(model.name());
  // "base", and two models of the undisturbed run and of each recovered one.
  EXPECT_EQ(names.size(), static_cast<std::size_t>(1 + 2 * (1 + recovered)));
  for (const std::string& name : names) {
    if (name == "base" || name.ends_with("-adapter")) continue;
    EXPECT_TRUE(names.contains(name + "-adapter")) << name;
  }
}

TEST_F(OperationCrashTest, C8PublicationIsDoneIfItsModelWasPublishedBeforeTheCrash) {
  Import("tiny");
  Upload("texts", testing_support::kTinyTexts);
  v1::Job job;
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CreateJob, testing_support::TinyJob(), &job).ok());
  v1::CancelJobRequest cancel;
  cancel.set_name(job.name());
  ASSERT_TRUE(Call(jobs_, &v1::FineTuneService::Stub::CancelJob, cancel, &job).ok());
  const std::string checkpoint =
      testing_support::PlantCheckpoint(directory_, job.name(), 1, [this](const std::string& path) {
        testing_support::WriteAdapterCheckpoint(path, directory_ + "/state/models/tiny");
      });
  ASSERT_FALSE(checkpoint.empty());
  const int recovered = CutOff("publish", [&](const std::string& name, longrunning::Operation* operation) {
    v1::PublishCheckpointRequest request;
    request.set_checkpoint(job.name() + "/1");
    request.set_name(name);
    request.set_request_id(name);
    return Call(models_, &v1::ModelService::Stub::PublishCheckpoint, request, operation);
  });
  EXPECT_GT(recovered, 2);
  EXPECT_LT(recovered, kLast) << "some were interrupted before the rename";
}

// A model with the wanted name that another operation made is not the result of the interrupted work.
TEST_F(OperationCrashTest, C8ModelOfAnotherOperationIsNotTakenForTheInterruptedWork) {
  v1::ImportModelRequest request;
  request.set_server_path("hf_tied_bf16");
  request.set_name("made");
  longrunning::Operation first;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::ImportModel, request, &first).ok());
  ASSERT_TRUE(Wait(first).has_response());
  // The server dies while a second import of "made" waits in its queue: only the record of its beginning exists.
  const std::string operations = directory_ + "/state/operations";
  app_.reset();
  base::FileSystem& real = base::RealFileSystem();
  const std::string record = StrCat(operations, "/", first.name().substr(first.name().find('/') + 1), ".json");
  auto json = base::ParseJson(real.Read(record, 1 << 20).value_or(""));
  ASSERT_TRUE(json.ok()) << json.status();
  const std::string second = "operations/op-second";
  (*json)["name"] = second;
  (*json)["finished"] = false;
  json->erase("response");
  ASSERT_TRUE(base::WriteFileAtomically(real, operations + "/op-second.json", base::Dump(*json)).ok());
  StartApp();
  longrunning::GetOperationRequest get;
  get.set_name(second);
  longrunning::Operation after;
  ASSERT_TRUE(Call(operations_, &longrunning::Operations::Stub::GetOperation, get, &after).ok());
  EXPECT_EQ(ReasonOf(after.error()), "SERVER_RESTARTED");
}

}  // namespace
}  // namespace nibble
