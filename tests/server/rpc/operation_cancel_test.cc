// Interrupts the real work of operations on whole models: by a cancel at every check for cancellation; by the deadline
// of operations and by the end of the server at the beginning of a long stage (docs/faults.md, C5, C8).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/sha256.h"
#include "server/base/strings.h"
#include "server/data/token_cache.h"
#include "server/jobs/job_spec.h"
#include "server/operations/operation_table.h"
#include "server/operations/stored_operation.h"
#include "server/plan/checkpoint_source.h"
#include "server/registry/model_library.h"
#include "server/rpc/begin_operation.h"
#include "server/serve/model_manager.h"
#include "server/serve/onednn_library.h"
#include "tests/server/model/small_models.h"
#include "tests/server/rpc/app_fixture.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/written_checkpoint.h"
#include "tests/support/cancel_at.h"
#include "tests/support/soon.h"

namespace nibble::rpc {
namespace {

using base::StrCat;
namespace longrunning = google::longrunning;

// When to interrupt an operation: at its check for cancellation with this number, or at the beginning of a stage.
struct Moment {
  std::int64_t ask = 0;
  std::string stage = {};
};

// Counts how often each stage of the work checks for cancellation, and calls `then` at one moment.
class WatchedScope : public registry::OperationScope {
 public:
  WatchedScope(registry::OperationScope& real, Moment at, std::function<void()> then)
      : real_(real), at_(std::move(at)), then_(std::move(then)) {}
  void Progress(const std::string& stage, std::int64_t done, std::int64_t total) override {
    const bool begins = stage != stage_;
    stage_ = stage;
    real_.Progress(stage, done, total);
    if (begins && stage == at_.stage) then_();
  }
  bool cancelled() const override {
    ++asks_[stage_];
    if (++total_ == at_.ask) then_();
    return real_.cancelled();
  }
  base::CancelToken cancel() const override { return real_.cancel(); }
  registry::OperationIdentity identity() const override { return real_.identity(); }
  void Hold(std::shared_ptr<const void> handle, absl::Duration kept) override { real_.Hold(std::move(handle), kept); }

  const std::map<std::string, std::int64_t>& asks() const { return asks_; }
  std::int64_t total() const { return total_; }

 private:
  registry::OperationScope& real_;
  const Moment at_;
  const std::function<void()> then_;
  std::string stage_;
  mutable std::map<std::string, std::int64_t> asks_;
  mutable std::int64_t total_ = 0;
};

class OperationCancelTest : public testing::Test {
 protected:
  using Work = std::function<absl::StatusOr<operations::OperationResponse>(registry::OperationScope&)>;
  static constexpr absl::Duration kDeadline = absl::Seconds(10);

  void SetUp() override {
    stream_ = models_.stream();
    stream_.library = products_.get();
    const auto source = model::Artifact::Open(models_.bf16());
    ASSERT_TRUE(source.ok()) << source.status();
    num_layers_ = (*source)->config().num_layers;
    num_tensors_ = static_cast<std::int64_t>((*source)->tensors().size());
    auto state = store::StateDirectory::Open(base::RealFileSystem(), models_.Path("state"), {.min_free_bytes = 1});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    texts_ = std::make_unique<registry::TextCache>(*state_->models);
    // Keeps no files, so that every conversion tokenizes its evaluation set.
    tokens_ = std::make_unique<data::TokenCache>(base::RealFileSystem(), state_->paths.tokens(), /*threads=*/1,
                                                 data::TokenCacheOptions{.max_bytes = 0});
    const auto locate = [this](const std::string& name,
                               const base::Cancelled&) -> absl::StatusOr<serve::ModelManager::Artifact> {
      const auto stored = state_->models->Get(name);
      if (!stored.ok()) return stored.status();
      return serve::ModelManager::Artifact{stored->directory, nullptr};
    };
    serve::EngineOptions engine;
    engine.kv_tokens = 1024;
    manager_ = std::make_unique<serve::ModelManager>(locate, engine, base::MemoryBudget::Make(0), stream_,
                                                     base::RealClock(), nullptr);
    library_ = MakeLibrary(1);
    Publish("base", models_.bf16());
    auto rows = state_->datasets->Begin("page");
    ASSERT_TRUE(rows.ok()) << rows.status();
    const std::string bytes = "{\"text\": \"a b c d e f g h\"}\n{\"text\": \"c d e\"}\n";
    ASSERT_TRUE((*rows)->Append(bytes).ok());
    const auto meta = [](const std::string&) { return base::Json{{"format", "text"}, {"rows", 2}}; };
    ASSERT_TRUE((*rows)->Finish(base::Sha256Hex(bytes), meta).ok());
    ASSERT_TRUE(Run(Convert("small"), {}, [] {}).has_response());
    checkpoint_ = testing_support::PlantCheckpoint(models_.Path("."), "job-1", 3, [this](const std::string& path) {
      testing_support::WriteAdapterCheckpoint(path, models_.bf16());
    });
    ASSERT_FALSE(checkpoint_.empty());
  }

  std::unique_ptr<registry::ModelLibrary> MakeLibrary(std::uint64_t min_free_bytes) {
    registry::ModelLibraryOptions options;
    options.upload_limits.min_free_bytes = min_free_bytes;
    options.find_checkpoint = [this](const std::string&,
                                     const std::string&) -> absl::StatusOr<registry::CheckpointSource> {
      jobs::JobSpec spec;
      spec.base_model = "base";
      store::CheckpointInfo checkpoint;
      checkpoint.step = 3;
      checkpoint.directory = checkpoint_;
      return plan::CheckpointSourceOf(checkpoint, "job-1", spec);
    };
    return std::make_unique<registry::ModelLibrary>(*state_, *texts_, *tokens_, metrics_, base::RealClock(), uploads_,
                                                    stream_, stream_, std::move(options));
  }
  void Publish(const std::string& name, const std::string& from) {
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    for (const auto& file : std::filesystem::directory_iterator(from))
      std::filesystem::copy(file.path(), (*pending)->directory());
    ASSERT_TRUE((*pending)->Commit().ok());
  }

  // The tests look only at whether the work succeeded.
  static absl::StatusOr<operations::OperationResponse> Answer(const absl::Status& status) {
    if (!status.ok()) return status;
    return Packed(v1::Model());
  }
  Work Convert(const std::string& name) {
    registry::ConvertRequest request;
    request.model = "base";
    request.name = name;
    request.target = model::Format::kInt8;
    request.eval_dataset = "page";
    return [this, request](registry::OperationScope& scope) {
      return Answer(library_->converter().Convert(request, scope).status());
    };
  }
  Work PublishCheckpoint(const std::string& name) {
    const registry::PublishRequest request{.checkpoint = "job-1/3", .name = name};
    return [this, request](registry::OperationScope& scope) {
      return Answer(library_->publisher().Publish(request, "", scope));
    };
  }
  Work Verify() {
    return [this](registry::OperationScope& scope) {
      return Answer(library_->verifier().Verify("small", scope).status());
    };
  }
  struct Named {
    std::string kind, long_stage;
    Work work;
  };
  // New for each run, because a name can be taken only once.
  std::vector<Named> Works(const std::string& name) {
    return {{"verify", "verify", Verify()},
            {"publish", "write", PublishCheckpoint(name)},
            {"convert", "record", Convert(name)}};
  }

  void OpenTable() {
    auto table =
        operations::OperationTable::Open(base::RealFileSystem(), clock_, models_.Path("operations"), kDeadline);
    ASSERT_TRUE(table.ok()) << table.status();
    table_ = *std::move(table);
  }
  // Runs the work as an operation; returns how it ends. Sets asks_ and total_, its checks for cancellation by stage and
  // in all, and launches_, the number of kernels launched after the moment `at`. The work waits until name_ is known.
  longrunning::Operation Run(const Work& work, const Moment& at, const std::function<void()>& then) {
    if (table_ == nullptr) OpenTable();
    std::promise<std::string> name;
    const auto named = name.get_future().share();
    const auto operation = table_->Start(
        {.model = "m"}, [&, named](registry::OperationScope& scope) -> absl::StatusOr<operations::OperationResponse> {
          name_ = named.get();
          scope_ = &scope;
          std::uint64_t before = models_.launches().total();
          WatchedScope watched(scope, at, [&] {
            then();
            before = models_.launches().total();
          });
          auto result = work(watched);
          launches_ = models_.launches().total() - before;
          asks_ = watched.asks();
          total_ = watched.total();
          return result;
        });
    EXPECT_TRUE(operation.ok()) << operation.status();
    const auto ended = std::make_shared<std::promise<longrunning::Operation>>();
    EXPECT_TRUE(
        table_->OnEnd(operation->name, [ended](const operations::Operation& one) { ended->set_value(ToProto(one)); })
            .ok());
    name.set_value(operation->name);
    return ended->get_future().get();
  }
  // How often this work checks for cancellation when it runs undisturbed.
  std::int64_t NumAsks(std::size_t i) {
    const Named whole = Works("whole")[i];
    const auto done = Run(whole.work, {}, [] {});
    EXPECT_TRUE(done.has_response()) << whole.kind << ": " << done.error().message();
    const bool made = state_->models->Get("whole").ok();
    EXPECT_TRUE(!made || state_->models->Delete("whole").ok());
    return total_;
  }
  // Nothing is left of a model that was not made, nor of the base that was quantized for it.
  void ExpectNothingLeft(const std::string& name) {
    EXPECT_FALSE(state_->models->Get(name).ok());
    for (const char* folder : {"models", "uploads"}) {
      for (const auto& entry : std::filesystem::directory_iterator(models_.Path("state") + "/" + folder)) {
        const std::string found = entry.path().filename().string();
        EXPECT_TRUE(found == "base" || found == "small") << folder << "/" << found;
      }
    }
  }

  model::SmallModels models_;
  const std::unique_ptr<kernels::DenseLibrary> products_ = serve::MakeOneDnnLibrary();
  kernels::Stream stream_;
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  telemetry::Metrics metrics_{{}, {}};
  registry::UploadTable uploads_{base::RealClock(), {}};
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<registry::TextCache> texts_;
  std::unique_ptr<data::TokenCache> tokens_;
  std::unique_ptr<serve::ModelManager> manager_;
  std::unique_ptr<registry::ModelLibrary> library_;
  std::unique_ptr<operations::OperationTable> table_;
  std::string checkpoint_;
  std::int64_t num_layers_ = 0, num_tensors_ = 0;
  // About the operation of the last Run.
  std::string name_;
  registry::OperationScope* scope_ = nullptr;
  std::map<std::string, std::int64_t> asks_;
  std::int64_t total_ = 0;
  std::uint64_t launches_ = 0;
};

// Each long stage checks for cancellation at every layer, tensor or MiB.
TEST_F(OperationCancelTest, C5WorkChecksForCancellationInEveryStage) {
  ASSERT_TRUE(Run(Verify(), {}, [] {}).has_response());
  EXPECT_GE(asks_["verify"], 2 * num_layers_ + num_tensors_) << "the load, the replay, the digests of the tensors";
  ASSERT_TRUE(Run(PublishCheckpoint("tuned"), {}, [] {}).has_response());
  EXPECT_GE(asks_["write"], 2 * num_tensors_) << "the base that is quantized, the model that is written";
  ASSERT_TRUE(Run(Convert("second"), {}, [] {}).has_response());
  EXPECT_GE(asks_["quantize"], num_tensors_ + num_layers_) << "each tensor, and the load of the source";
  EXPECT_GE(asks_["record"], 2 * num_layers_) << "the load, the record";
}

TEST_F(OperationCancelTest, C5ACancelEndsTheWorkWhereverItIs) {
  for (std::size_t i = 0; i < Works("").size(); ++i) {
    const std::string kind = Works("")[i].kind;
    const std::int64_t asks = NumAsks(i);
    std::printf("%s checks for cancellation %d times\n", kind.c_str(), static_cast<int>(asks));
    for (std::int64_t at = 1; at <= asks; ++at) {
      SCOPED_TRACE(StrCat(kind, " at ", at, " of ", asks));
      const auto ended = Run(Works("cut")[i].work, {.ask = at}, [this] { EXPECT_TRUE(table_->Cancel(name_).ok()); });
      EXPECT_EQ(ended.error().code(), static_cast<int>(grpc::StatusCode::CANCELLED)) << ended.error().message();
      EXPECT_LE(total_, at + 1) << "it ends at the check";
      ExpectNothingLeft("cut");
      if (HasFailure()) return;
    }
  }
}

TEST_F(OperationCancelTest, C5TheDeadlineOfOperationsEndsTheWork) {
  for (const Named& late : Works("late")) {
    SCOPED_TRACE(late.kind);
    const auto ended = Run(late.work, {.stage = late.long_stage}, [this] { clock_.Advance(kDeadline); });
    EXPECT_EQ(ended.error().code(), static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED)) << ended.error().message();
    EXPECT_LE(launches_, 1u) << "at most one tensor or layer is worked on";
    ExpectNothingLeft("late");
  }
}

TEST_F(OperationCancelTest, C8EndOfTheServerEndsTheWorkAndItIsAborted) {
  for (const Named& cut : Works("cut")) {
    SCOPED_TRACE(cut.kind);
    std::future<void> gone;
    const auto stop = [&] {
      gone = std::async(std::launch::async, [this] { table_.reset(); });
      while (!scope_->cancelled()) std::this_thread::yield();
    };
    const auto ended = Run(cut.work, {.stage = cut.long_stage}, stop);
    gone.get();
    EXPECT_EQ(ended.error().code(), static_cast<int>(grpc::StatusCode::ABORTED)) << ended.error().message();
    EXPECT_LE(launches_, 1u);
    ExpectNothingLeft("cut");
    OpenTable();
    EXPECT_EQ(ToProto(table_->Get(name_).value()).SerializeAsString(), ended.SerializeAsString());
  }
}

TEST_F(OperationCancelTest, C5APublicationStopsBelowTheWatermark) {
  library_ = MakeLibrary(std::numeric_limits<std::uint64_t>::max());
  const auto ended = Run(PublishCheckpoint("tuned"), {}, [] {});
  EXPECT_EQ(testing_support::ReasonOf(ended.error()), "DISK_FULL") << ended.error().message();
  ExpectNothingLeft("tuned");
}

// The load belongs to all calls that wait for the model; the end of the server stops it.
TEST_F(OperationCancelTest, C5ALoadIsStoppedWhereverItIs) {
  support::CancelAt cancel;
  ASSERT_TRUE(manager_->Acquire("small", cancel.callback()).ok());
  const int checks = cancel.calls();
  EXPECT_GE(checks, num_layers_);
  ASSERT_TRUE(manager_->Unload("small").ok());
  for (int at = 1; at <= checks; ++at) {
    cancel.Restart(at);
    EXPECT_TRUE(absl::IsCancelled(manager_->Acquire("small", cancel.callback()).status())) << at;
    EXPECT_EQ(cancel.calls(), at);
  }
  EXPECT_TRUE(manager_->residents().empty());
}

// The tests below call LoadModel over the wire, for a model that cannot be read while `shut` is true.
class SlowDisk {
 public:
  explicit SlowDisk(std::atomic<bool>& shut) : shut_(shut) {}
  template <typename Work>
  auto Around(std::string_view kind, const std::string& path, Work work) -> decltype(work()) {
    const bool waits = kind == "read" && path.ends_with("/models/base/manifest.json");
    const bool opened = !waits || testing_support::Soon([this] { return !shut_; }, std::chrono::minutes(2));
    EXPECT_TRUE(opened);
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }

 private:
  std::atomic<bool>& shut_;
};

class LoadCancelTest : public testing_support::AppTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AppTest::Options();
    options.files = &files_;
    options.operation_deadline_s = deadline_s_;
    return options;
  }
  longrunning::Operation Load() {
    v1::LoadModelRequest request;
    request.set_name("base");
    request.set_request_id(StrCat("load-", ++number_));
    longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::LoadModel, request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_FALSE(operation.done());
    return operation;
  }
  longrunning::Operation Get(const longrunning::Operation& operation) {
    longrunning::GetOperationRequest get;
    get.set_name(operation.name());
    longrunning::Operation after;
    const grpc::Status status = Call(operations_, &longrunning::Operations::Stub::GetOperation, get, &after);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return after;
  }

  double deadline_s_ = 0;
  int number_ = 0;
  std::atomic<bool> shut_{false};
  base::HookedFiles<SlowDisk> files_{base::RealFileSystem(), shut_};
};

TEST_F(LoadCancelTest, C5ALoadIsCancelledWhileItsModelIsRead) {
  Import("base");
  shut_ = true;
  const auto operation = Load();
  longrunning::CancelOperationRequest cancel;
  cancel.set_name(operation.name());
  google::protobuf::Empty none;
  EXPECT_TRUE(Call(operations_, &longrunning::Operations::Stub::CancelOperation, cancel, &none).ok());
  EXPECT_EQ(Wait(operation).error().code(), static_cast<int>(grpc::StatusCode::CANCELLED));
  shut_ = false;
}

TEST_F(LoadCancelTest, C5TheDeadlineOfOperationsEndsALoad) {
  Import("base");
  app_.reset();
  deadline_s_ = 1;
  StartApp();
  shut_ = true;
  const auto ended = Wait(Load());
  EXPECT_EQ(ended.error().code(), static_cast<int>(grpc::StatusCode::DEADLINE_EXCEEDED)) << ended.error().message();
  shut_ = false;
}

TEST_F(LoadCancelTest, C8EndOfTheServerEndsALoadAndItIsAborted) {
  Import("base");
  shut_ = true;
  const auto operation = Load();
  auto gone = std::async(std::launch::async, [this] { app_.reset(); });
  const std::string record =
      directory_ + "/state/operations/" + operation.name().substr(operation.name().find('/') + 1) + ".json";
  const auto ended = [&] {
    const auto parsed =
        operations::ParseStoredOperation(base::RealFileSystem().Read(record, 1 << 20).value_or(""), "record");
    return parsed.ok() && parsed->operation->done;
  };
  while (!ended()) std::this_thread::yield();  // although the load itself is blocked
  shut_ = false;
  gone.get();
  StartApp();
  const auto after = Get(operation);
  EXPECT_EQ(after.error().code(), static_cast<int>(grpc::StatusCode::ABORTED)) << after.error().message();
  EXPECT_EQ(testing_support::ReasonOf(after.error()), "SERVER_RESTARTED");
}

}  // namespace
}  // namespace nibble::rpc
